// The page of a run: what its parts show, live or from a file.
"use strict";

const MOST_DRAWN = 12; // sites; more are a table
const MOST_WITH_TEXTS = 3; // sites; more have texts of links where the pointer is, and in the table
const MOST_HEAT = 45; // percent of the colour: the text on it stays readable
const PARTS = ["input", "compute", "exposed", "checkpoint"];
const PART_NAMES = {
  input: "waits for data", compute: "compute and rest", exposed: "stands still for other sites",
  checkpoint: "writes a checkpoint",
};

function showHead(run) {
  const silent = run.sites.filter((site) => site.life === "silent");
  const ended = run.sites.length > 0 && run.sites.every((site) => site.life === "ended");
  let [text, kind] = ["training", "good"];
  if (run.sites.length === 0) [text, kind] = ["no reports yet", "warn"];
  else if (ended) [text, kind] = ["ended", "faint"];
  else if (silent.length > 0) [text, kind] = ["silent: " + silent.map((site) => site.name).join(", "), "bad"];
  else if (known(run.standstill_seconds)) [text, kind] = ["no step for " + seconds(run.standstill_seconds), "bad"];
  say(text, kind);
  const sent = run.sites.reduce((sum, site) => sum + site.bytes_sent, 0);
  const facts = [
    ["step", whole(run.step) + (known(run.of_steps) ? " of " + whole(run.of_steps) : ""), "site.step"],
    ["loss", loss(run.loss), "site.loss"],
    ...(known(run.held_out_loss) ? [["held-out loss", loss(run.held_out_loss), "site.held_out_loss"]] : []),
    ["tokens/s", count(run.tokens_per_second), "site.tokens_per_second"],
    ["left", seconds(run.seconds_left)],
    ...(known(run.data_left_tokens) ? [["tokens left of this pass", count(run.data_left_tokens),
      "leader.left_tokens"]] : []),
    ...(run.data_repeated_tokens ? [["tokens read again", count(run.data_repeated_tokens),
      "store.data_repeated_tokens"]] : []),
    ["sent between sites", bytes(sent), "link.bytes_sent"],
  ];
  const egress = run.sites.filter((site) => known(site.egress_dollars));
  if (egress.length > 0) {
    const spent = egress.reduce((sum, site) => sum + site.egress_dollars, 0);
    facts.push(["egress", `${dollars(spent)}, ${dollars(86400 * spendsPerSecond(egress, run.links))} a day`,
      "site.egress_dollars"]);
  }
  if (!pointed("head")) $("head").replaceChildren(...facts.map(([name, value, metric]) =>
    element("div", behind(metric), element("dt", {}, name), element("dd", {}, value))));
}

function spendsPerSecond(sites, links) {
  return sites.reduce((sum, site) => {
    const rates = links.filter((link) => link.source === site.name).map((link) => link.bytes_per_second || 0);
    return sum + rates.reduce((a, b) => a + b, 0) * site.egress_dollars / Math.max(1, site.bytes_sent);
  }, 0);
}

function say(text, kind) {
  if ($("state").textContent === text) return; // it would be read out once more
  $("state").textContent = text;
  $("state").className = kind;
  document.title = `${text} – geocomm`;
}

function showVerdict(run) {
  const verdict = (run.verdicts || [])[0];
  $("verdict").hidden = !verdict;
  if (verdict) {
    const evidence = newTable([["measured", ([name]) => name], ["value", ([, value]) => value]], verdict.evidence);
    const others = run.verdicts.slice(1).map((one) => element("p", {}, one.text));
    $("verdict-text").replaceChildren(verdict.text, " ", element("span", { class: "faint" }, verdict.fix));
    $("verdict-more").replaceChildren(evidence, ...others);
  }
}

function showAlerts(run) {
  const alerts = run.alerts || [];
  $("alerts").hidden = alerts.length === 0;
  $("alerts").replaceChildren(...alerts.map((alert) =>
    element("p", {}, marked(alert.severity + " ", alert.severity === "critical" ? "bad" : "warn"), alert.text)));
}

// ---- sites and links

function showGraph(run) {
  const many = run.sites.length > MOST_DRAWN;
  $("graph").className = many ? "scroll tall" : "";
  if (many) $("graph").tabIndex = 0; else $("graph").removeAttribute("tabindex");
  if (!pointed("graph")) $("graph").replaceChildren(many ? heat(run) : ring(run));
}

function ring(run) {
  const width = Math.min(640, Math.max(340, $("graph").clientWidth)), height = run.sites.length > 2 ? 380 : 220;
  const wide = width / 2 - (width < 500 ? 50 : 110);
  const place = new Map(run.sites.map((site, index) => {
    const angle = Math.PI + (2 * Math.PI * index) / run.sites.length;
    const y = run.sites.length > 2 ? height / 2 + 135 * Math.sin(angle) : height / 2;
    return [site.name, { x: width / 2 + wide * Math.cos(angle), y }];
  }));
  const fastest = Math.max(1, ...run.links.map((link) => link.bytes_per_second || 0));
  const picture = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "sites: " + run.sites.map(siteText).join("; ") });
  const texts = [];
  for (const link of run.links) {
    const from = place.get(link.source), to = place.get(link.target);
    if (!from || !to) continue;
    const use = (link.bytes_per_second || 0) / (link.planned_bytes_per_second || fastest);
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const length = Math.hypot(dx, dy) || 1;
    const bend = run.sites.length > 6 ? 10 : 26;
    const middle = { x: (from.x + to.x) / 2 - (dy / length) * bend, y: (from.y + to.y) / 2 + (dx / length) * bend };
    const lossy = (link.retransmitted_share || 0) > 0.01;
    picture.append(element("path", {
      class: lossy ? "edge lossy" : "edge",
      d: `M ${from.x} ${from.y} Q ${middle.x} ${middle.y} ${to.x} ${to.y}`,
      "stroke-width": 1 + 7 * Math.min(1, use), opacity: 0.35 + 0.5 * Math.min(1, use),
    }, element("title", {}, linkText(link))));
    if (run.sites.length <= MOST_WITH_TEXTS) {
      const off = run.sites.length > 2 ? 0.32 : 0.5;
      const away = run.sites.length > 2 ? bend * 0.8 : bend * 0.5;
      const at = { x: from.x + dx * off - (dy / length) * away, y: from.y + dy * off + (dx / length) * away };
      if (run.sites.length === 2) at.y += dx > 0 ? 22 : -26;
      texts.push(element("text", { x: at.x, y: at.y, "text-anchor": "middle", class: "faint" },
        `→ ${link.target}: ${rate(link.bytes_per_second)}`));
      if (run.sites.length <= 2)
        texts.push(element("text", { x: at.x, y: at.y + 14, "text-anchor": "middle", class: "faint" },
          `rtt ${milliseconds(link.rtt_seconds)}, ${percent(link.retransmitted_share)} sent again`));
    }
  }
  for (const site of run.sites) {
    const { x, y } = place.get(site.name);
    picture.append(element("g", {},
      element("circle", { cx: x, cy: y, r: 40, class: `node ${site.life}` }),
      element("text", { x, y: y - 6, "text-anchor": "middle", "font-weight": 600 }, short(site.name)),
      element("text", { x, y: y + 9, "text-anchor": "middle", class: "faint" }, aliveText(site)),
      element("text", { x, y: y + 23, "text-anchor": "middle", class: "faint" }, `step ${whole(site.step)}`),
      known(site.disk_free_bytes) ? element("text", { x, y: y + 54, "text-anchor": "middle",
        class: isFull(site) ? "bad" : "faint" }, diskText(site)) : null,
      element("title", {}, siteText(site))));
  }
  picture.append(...texts);
  return picture;
}

const short = (name) => (name.length > 11 ? name.slice(0, 10) + "…" : name);
const aliveText = (site) => (site.life === "ended" ? "ended" :
  `${site.ranks_reporting} of ${site.ranks.length} rank${site.ranks.length === 1 ? "" : "s"}`);
const diskText = (one) => (known(one.disk_free_bytes) ? `${bytes(one.disk_free_bytes)} of disk free` : "–");
const isFull = (one) => one.disk_free_bytes < 0.05 * one.disk_size_bytes && one.disk_free_bytes < 10 * 2 ** 30; // as the alert
const siteText = (site) => `${site.name}: ${aliveText(site)}, step ${whole(site.step)}, ` +
  `${count(site.tokens_per_second)} tokens/s, a step takes ${seconds(site.step_seconds)}, ` +
  `heard ${seconds(site.report_age_seconds)} ago` + (known(site.disk_free_bytes) ? ", " + diskText(site) : "");
const linkText = (link) => `${link.source} → ${link.target}: ${rate(link.bytes_per_second)}` +
  (known(link.planned_bytes_per_second) ? ` of ${rate(link.planned_bytes_per_second)}` : "") +
  `, round trip ${milliseconds(link.rtt_seconds)} (least ${milliseconds(link.least_rtt_seconds)}), ` +
  `${percent(link.retransmitted_share)} sent again, ${link.outages} outages`;

function heat(run) {
  const names = run.sites.map((site) => site.name);
  const links = new Map(run.links.map((link) => [link.source + " " + link.target, link]));
  const fastest = Math.max(1, ...run.links.map((link) => link.bytes_per_second || 0));
  const rows = names.map((source) => element("tr", {}, element("th", { scope: "row" }, short(source)), ...names.map((target) => {
    const link = links.get(source + " " + target);
    if (!link) return element("td", {}, source === target ? "" : "–");
    const use = Math.min(1, (link.bytes_per_second || 0) / (link.planned_bytes_per_second || fastest));
    const cell = element("td", { title: linkText(link) }, whole((link.bytes_per_second || 0) * 8 / 1e6));
    cell.style.background = `color-mix(in srgb, var(--compute) ${Math.round(MOST_HEAT * use)}%, transparent)`;
    return cell;
  })));
  const head = element("tr", {}, element("th", { scope: "col" }, "Mbit/s"), ...names.map((name) =>
    element("th", { scope: "col" }, element("span", {}, short(name)))));
  return element("table", { class: "heat", "aria-label": "bit rates from (rows) to (columns)" },
    element("thead", {}, head), element("tbody", {}, ...rows));
}

// ---- steps

let stepsOfPart = null; // those of the part of the time that is shown, where the server told them

function stepsShown(run) {
  if (!zoomed) return run.steps;
  return stepsOfPart || Object.fromEntries(Object.entries(run.steps).map(([site, steps]) =>
    [site, steps.filter((step) => step.at >= zoomed[0] && step.at <= zoomed[1])]));
}

function showSteps(run) {
  const stepsOf = stepsShown(run), sites = Object.keys(stepsOf);
  $("t-steps").textContent = zoomed ? `Last steps until ${clock(zoomed[1], zoomed[1] - zoomed[0])}` : "Last steps";
  $("steps-key").replaceChildren(...PARTS.map((part) =>
    element("span", {}, element("i", { class: part }), PART_NAMES[part])));
  const all = sites.flatMap((site) => stepsOf[site].map((step) => step.seconds || 0)).sort((a, b) => a - b);
  const most = all.length ? Math.min(all[all.length - 1], 3 * all[Math.floor(all.length / 2)]) : 0;
  if (!most) {
    $("steps").replaceChildren(element("p", { class: "faint" }, zoomed ? "no step that is known ended then" :
      "no step has ended of late"));
    return;
  }
  const height = Math.max(14, Math.min(110, 300 / sites.length)), left = 130;
  const width = Math.max(340, $("steps").clientWidth);
  const shown = Math.max(12, ...sites.map((site) => stepsOf[site].length));
  const gap = sites.length > 8 ? 6 : 12;
  const slot = (width - left) / shown;
  const picture = element("svg", { viewBox: `0 0 ${width} ${sites.length * (height + gap) + 4}`, role: "img",
    "aria-label": "parts of steps; last ones: " + sites.map((site) => stepText(site, stepsOf[site].at(-1))).join("; ") });
  sites.forEach((site, row) => {
    const bottom = row * (height + gap) + height;
    const steps = stepsOf[site], last = steps.at(-1);
    picture.append(element("text", { x: 0, y: bottom - 2 }, short(site)),
      element("text", { x: left - 8, y: bottom - 2, class: "faint", "text-anchor": "end" }, seconds(last ? last.seconds : null)),
      element("line", { x1: left, x2: width, y1: bottom, y2: bottom, stroke: "var(--line)" }));
    steps.forEach((step, index) => {
      let y = bottom;
      const own = partsOf(step), bar = element("g", {}, element("title", {}, stepText(site, step)));
      for (const part of PARTS) {
        const tall = Math.min(y - (bottom - height), (height * own[part]) / most);
        if (tall <= 0) continue;
        y -= tall;
        bar.append(element("rect", { class: part, x: left + (shown - steps.length + index) * slot, y,
          width: Math.max(1, slot - 1), height: tall }));
      }
      picture.append(bar);
    });
  });
  if (!pointed("steps")) $("steps").replaceChildren(picture);
}

function partsOf(step) {
  const own = { input: step.input_seconds || 0, exposed: step.exposed_seconds || 0, checkpoint: step.checkpoint_seconds || 0 };
  return { ...own, compute: Math.max(0, (step.seconds || 0) - own.input - own.exposed - own.checkpoint) };
}

function stepText(site, step) {
  if (!step) return `${site}: none`;
  const own = partsOf(step), parts = PARTS.map((part) => `${PART_NAMES[part]} ${seconds(own[part])}`);
  return `${site}, step ${step.step}: ${seconds(step.seconds || 0)}; ${parts.join(", ")}`;
}

// ---- tables

function showLinks(run) {
  table($("links"), [
    ["from", (link) => link.source], ["to", (link) => link.target],
    ["sends", (link) => rate(link.bytes_per_second), "number", "link.bytes_per_second"],
    ["planned", (link) => rate(link.planned_bytes_per_second), "number", "link.planned_bytes_per_second"],
    ["round trip (least)", (link) => `${milliseconds(link.rtt_seconds)} (${milliseconds(link.least_rtt_seconds)})`, "number",
      "link.rtt_seconds, link.least_rtt_seconds"],
    ["sent again", (link) => percent(link.retransmitted_share), "number", "link.retransmitted_share"],
    ["clock ahead", (link) => known(link.clock_offset_seconds) ?
      `${milliseconds(link.clock_offset_seconds)} ± ${milliseconds(link.clock_error_seconds)}` : "–", "number",
      "link.clock_offset_seconds, link.clock_error_seconds"],
    ["outages", (link) => link.outages ? `${link.outages}, ${seconds(link.outage_seconds)}` : "0", "number",
      "link.outages, link.outage_seconds"],
    ["streams", (link) => link.streams, "number", "link.streams"],
    ["by", (link) => `${link.transport} ${link.congestion_control}`],
    ["cipher", (link) => link.cipher || (link.streams ? marked("plaintext", "warn") : "–")],
  ], run.links);
}

function certificate(ends, at) {
  if (!known(ends)) return "–";
  const days = (ends - at) / 86400;
  return marked(days > 0 ? whole(days) + " days left" : "expired", days < 14 ? "bad" : "");
}

function showRanks(run) {
  const ends = new Map(run.sites.map((site) => [site.name, site.certificate_ends]));
  table($("ranks"), [
    ["site", (rank) => rank.site], ["rank", (rank) => rank.rank, "number"], ["machine", (rank) => rank.host],
    ["heard", (rank) => marked(rank.life === "ended" ? "ended" : seconds(rank.report_age_seconds) + " ago",
      rank.life === "silent" ? "bad" : ""), "", "heard.age_seconds"],
    ["step", (rank) => whole(rank.step), "number", "site.step"],
    ["a step takes", (rank) => seconds(rank.step_seconds), "number", "site.step_seconds"],
    ["stands still", (rank) => percent(rank.exposed_share), "number", "site.exposed_share"],
    ["tokens/s", (rank) => count(rank.tokens_per_second), "number", "site.tokens_per_second"],
    ["run folder's disk", (rank) => marked(diskText(rank), known(rank.disk_free_bytes) && isFull(rank) ? "bad" : ""),
      "number", "site.disk_free_bytes, site.disk_size_bytes"],
    ["site's certificate", (rank) => certificate(ends.get(rank.site), run.at), "number",
      "site.certificate_left_seconds"],
  ], run.sites.flatMap((site) => site.ranks));
}

function showEvents(run) {
  table($("events"), [
    ["when", (event) => new Date(1000 * event.at).toLocaleTimeString("en", { hour12: false })], ["site", (event) => event.site],
    ["ranks", (event) => event.ranks.join(", ")], ["what", (event) => event.kind.replaceAll("_", " ")],
    ["details", (event) => Object.entries(event.fields).map(([name, value]) =>
      `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ").slice(0, 200)],
  ], run.events);
}

function showMembers(run) {
  const parts = [];
  if (run.members) {
    parts.push(newTable([["site", (one) => one.site], ["standing", (one) => one.standing],
      ["rounds that counted", (one) => one.rounds, "number"],
      ["tokens dealt, not counted", (one) => one.dealt ?? "", "number", "member.dealt_tokens"]], run.members));
  }
  const reading = run.sites.filter((site) => known(site.data_fetched_bytes));
  if (reading.length > 0) {
    parts.push(newTable([["site", (site) => site.name],
      ["waited for its data set", (site) => seconds(site.data_waited_seconds), "number", "site.data_waited_seconds"],
      ["fetched of it", (site) => bytes(site.data_fetched_bytes), "number", "site.data_fetched_bytes"],
      ["what that cost", (site) => dollars(site.data_fetched_dollars), "number", "site.data_fetched_dollars"],
    ], reading));
  }
  if (run.rounds.length > 0) {
    parts.push(newTable([["fragment", (one) => one.fragment, "number"], ["round", (one) => one.round, "number"],
      ["phase", (one) => one.phase], ["since", (one) => seconds(one.age_seconds), "number"],
      ["waits for", (one) => one.waits_for.join(", ")], ["counted", (one) => one.counted.join(", ")]], run.rounds));
  }
  $("members").parentElement.hidden = parts.length === 0;
  $("members").replaceChildren(...parts);
}

function showOptions(run) {
  const rows = run.options.map((one) => ({ ...one, values: Object.entries(one.values) }));
  const listed = newTable([["option", (one) => one.name], ["default", (one) => one.default || "–"],
    ["here", (one) => one.values.map(([value, sites]) =>
      (value || "–") + (one.values.length === 1 ? "" : ` (${sites.join(", ")})`)).join("; ")]], rows);
  $("options").replaceChildren(rows.length > 0 ? listed : element("p", { class: "faint" }, "No option differs."));
}

// ---- what is drawn when

const AWAY_MS = 10_000; // so often what is out of view is drawn: a screen reader, a search and a printer have it too
const away = new Set(); // sections that are nowhere near the window
const late = new Map(); // by section: how to draw it, once it comes near
const watcher = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    if (!isIntersecting) away.add(target);
    else if (away.delete(target)) drawLate(target);
  }
}, { rootMargin: "300px" });

function drawIn(section, draw) {
  if (!away.has(section)) {
    draw();
    watcher.observe(section);
    return;
  }
  if (!late.has(section)) setTimeout(drawLate, AWAY_MS, section);
  late.set(section, draw);
}

function drawLate(section) {
  const draw = late.get(section);
  late.delete(section);
  if (draw) draw();
}

// What is drawn from which parts of the state: only that is drawn anew. With the id of what is drawn only in view.
const DRAWN = [
  [showHead, ["step", "sites", "links"]], [showVerdict, ["verdicts"]], [showAlerts, ["alerts"]],
  [showGraph, ["sites", "links"], "graph"], [showSteps, ["steps"], "steps"], [showLinks, ["links"], "links"],
  [showRanks, ["sites"], "ranks"], [showEvents, ["events"], "events"], [showMembers, ["members", "rounds"]],
  [showOptions, ["options"], "options"],
];

function show(run, changed) {
  if (changed.metrics) metrics = changed.metrics;
  for (const [draw, parts, place] of DRAWN) {
    if (!parts.some((part) => part in changed)) continue;
    if (place) drawIn($(place).closest("section"), () => draw(run)); else draw(run);
  }
}

function live() {
  let run = {}, stream = null, timer = null, turns = 0;
  const connect = () => {
    if (document.hidden || stream) return; // a browser has few connections to a host for all its tabs
    stream = new EventSource("api/stream");
    stream.onmessage = (message) => {
      const changed = JSON.parse(message.data);
      run = { ...run, ...changed };
      show(run, changed);
    };
    stream.onerror = () => {
      say("geocomm dashboard does not answer", "bad");
      if (stream && stream.readyState === EventSource.CLOSED) { disconnect(); setTimeout(connect, 5000); }
    };
  };
  const disconnect = () => { if (stream) stream.close(); stream = null; };
  const refresh = async (asked) => {
    clearTimeout(timer);
    const turn = turns += 1;
    const path = zoomed ? `api/part?since=${zoomed[0]}&until=${zoomed[1]}` : `api/curves?seconds=${shownSeconds}`;
    let wait = 5;
    try {
      const answer = asked || !studied() ? await fetch(path) : {};
      const data = answer.ok ? await answer.json() : null;
      if (turn !== turns) return; // something else is asked for by now
      if (data) {
        wait = Math.min(60, Math.max(5, data.interval / 2));
        stepsOfPart = zoomed ? data.steps : null;
        drawIn($("curves").closest("section"), () => showCurves(data));
        if (zoomed && run.steps) showSteps(run);
      }
    } catch { /* the stream says so */ }
    if (turn !== turns) return;
    if (!document.hidden) timer = setTimeout(refresh, 1000 * wait, false);
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect(); else { connect(); refresh(false); }
  });
  const zoomChanged = () => {
    stepsOfPart = null;
    if (run.steps) showSteps(run);
    refresh(true);
  };
  showWindows(zoomChanged);
  showZooms(zoomChanged);
  connect();
  refresh(true);
}

const saved = $("data");
if (saved) {
  const data = JSON.parse(saved.content.textContent), interval = data.curves.interval;
  leastSeconds = Math.max(leastSeconds, 4 * interval);
  const every = interval < 120 ? `${interval} s` : seconds(interval);
  $("part").before(element("p", { class: "faint" }, `This file has one point in ${every}; zooming in shows no more.`));
  showZooms(() => showSteps(data.run));
  show(data.run, data.run);
  showCurves(data.curves);
} else {
  live();
}
