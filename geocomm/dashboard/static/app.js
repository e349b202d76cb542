// The page of a run. Everything that comes from a run is set as text, never as markup: names are whatever sites chose.
"use strict";

const MOST_DRAWN = 12; // sites; more are a table
const MOST_WITH_TEXTS = 3; // sites; more have texts of links where the pointer is, and in the table
const MOST_HEAT = 45; // percent of the colour: the text on it stays readable
const PARTS = ["input", "compute", "exposed", "checkpoint"];
const PART_NAMES = {
  input: "waits for data", compute: "compute and rest", exposed: "stands still for other sites",
  checkpoint: "writes a checkpoint",
};
const $ = (id) => document.getElementById(id);

function element(tag, attributes, ...children) {
  const svg = ["svg", "g", "path", "circle", "rect", "text", "title", "line"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) =>
    child instanceof Node ? child : document.createTextNode(String(child))));
  return made;
}

const known = (value) => value !== null && value !== undefined;
const number = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
function scaled(value, units, base) {
  let place = 0;
  while (Math.abs(value) >= base && place < units.length - 1) { value /= base; place += 1; }
  return number(value, place === 0 || Math.abs(value) >= 100 ? 0 : 1) + " " + units[place];
}
const or = (show) => (value) => (known(value) ? show(value) : "–");
const bytes = or((value) => scaled(value, ["B", "kB", "MB", "GB", "TB"], 1000));
const rate = or((value) => scaled(value * 8, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"], 1000));
const count = or((value) => scaled(value, ["", "k", "M", "G"], 1000).trim());
const percent = or((value) => number(100 * value, value < 0.1 && value > 0 ? 1 : 0) + " %");
const whole = or((value) => number(value, 0));
const loss = or((value) => number(value, 4));
const milliseconds = or((value) => number(1000 * value, value < 0.01 ? 1 : 0) + " ms");
const dollars = or((value) => "$" + number(value, value < 100 ? 2 : 0));
const seconds = or((value) => {
  if (value === 0) return "0 s";
  if (value < 1) return milliseconds(value);
  if (value < 120) return number(value, value < 10 ? 2 : 0) + " s";
  if (value < 7200) return number(value / 60, 0) + " min";
  return number(value / 3600, 1) + " h";
});

// The tooltip of a number: where Prometheus has it.
const behind = (metric) => (metric ? { title: `Prometheus: ${metric}` } : {});

function table(target, columns, rows) {
  const body = rows.map((row) => element("tr", {}, ...columns.map(([, show, kind]) => {
    const value = show(row);
    return element("td", kind ? { class: kind } : {}, value);
  })));
  if (target.tHead) { // stays, and with it the tooltip that the pointer is at
    target.tBodies[0].replaceChildren(...body);
    return;
  }
  const head = columns.map(([name, , kind, metric]) =>
    element("th", { scope: "col", ...(kind ? { class: kind } : {}), ...behind(metric) }, name));
  target.append(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

function marked(text, kind) { return element("span", { class: kind }, text); }

// Whether the pointer is there: tooltips of what is drawn anew would vanish.
const pointed = (id) => matchMedia("(hover: hover)").matches && $(id).matches(":hover");

function showHead(run) {
  const silent = run.sites.filter((site) => site.life === "silent");
  const ended = run.sites.length > 0 && run.sites.every((site) => site.life === "ended");
  const ages = run.sites.filter((site) => site.life === "reporting").map((site) => site.step_age_seconds).filter(known);
  const paces = run.sites.map((site) => site.step_seconds).filter(known);
  const stalled = ages.length > 0 && Math.max(...ages) > Math.max(60, 5 * Math.max(0, ...paces));
  let [text, kind] = ["training", "good"];
  if (run.sites.length === 0) [text, kind] = ["no reports yet", "warn"];
  else if (ended) [text, kind] = ["ended", "faint"];
  else if (silent.length > 0) [text, kind] = ["silent: " + silent.map((site) => site.name).join(", "), "bad"];
  else if (stalled) [text, kind] = ["no step for " + seconds(Math.max(...ages)), "bad"];
  say(text, kind);
  const sent = run.sites.reduce((sum, site) => sum + site.bytes_sent, 0);
  const facts = [
    ["step", whole(run.step) + (known(run.of_steps) ? " of " + whole(run.of_steps) : ""), "geocomm_train_step"],
    ["loss", loss(run.loss), "geocomm_train_loss"],
    ["tokens/s", count(run.tokens_per_second), "geocomm_train_tokens_per_second"],
    ["left", seconds(run.seconds_left)],
    ["sent between sites", bytes(sent), "geocomm_site_link_sent_bytes_total"],
  ];
  const egress = run.sites.filter((site) => known(site.egress_dollars));
  if (egress.length > 0) {
    const spent = egress.reduce((sum, site) => sum + site.egress_dollars, 0);
    facts.push(["egress", `${dollars(spent)}, ${dollars(86400 * spendsPerSecond(egress, run.links))} a day`,
      "geocomm_site_egress_dollars_total"]);
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
    const evidence = element("table", {});
    table(evidence, [["measured", ([name]) => name], ["value", ([, value]) => value]], verdict.evidence);
    const others = run.verdicts.slice(1).map((one) => element("p", {}, one.text));
    $("verdict").replaceChildren(
      element("summary", {}, verdict.text, " ", element("span", { class: "faint" }, verdict.fix)), evidence, ...others);
  }
  const alerts = run.alerts || [];
  $("alerts").hidden = alerts.length === 0;
  $("alerts").replaceChildren(...alerts.map((alert) =>
    element("p", {}, marked(alert.severity + " ", alert.severity === "critical" ? "bad" : "warn"), alert.text)));
}

// ---- sites and links

function showGraph(run) {
  const many = run.sites.length > MOST_DRAWN;
  $("graph").className = many ? "scroll tall" : "";
  $("graph").tabIndex = many ? 0 : -1;
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
  const picture = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "sites and their links" });
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
    const alive = site.life === "ended" ? "ended" : `${site.ranks_reporting} of ${site.ranks.length} rank${site.ranks.length === 1 ? "" : "s"}`;
    picture.append(element("g", {},
      element("circle", { cx: x, cy: y, r: 40, class: `node ${site.life}` }),
      element("text", { x, y: y - 6, "text-anchor": "middle", "font-weight": 600 }, short(site.name)),
      element("text", { x, y: y + 9, "text-anchor": "middle", class: "faint" }, alive),
      element("text", { x, y: y + 23, "text-anchor": "middle", class: "faint" }, `step ${whole(site.step)}`),
      element("title", {}, `${site.name}: ${alive}, ${count(site.tokens_per_second)} tokens/s, ` +
        `a step takes ${seconds(site.step_seconds)}, heard ${seconds(site.report_age_seconds)} ago`)));
  }
  picture.append(...texts);
  return picture;
}

const short = (name) => (name.length > 11 ? name.slice(0, 10) + "…" : name);
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

function showSteps(run) {
  const sites = Object.keys(run.steps);
  $("steps-key").replaceChildren(...PARTS.map((part) =>
    element("span", {}, element("i", { class: part }), PART_NAMES[part])));
  const all = sites.flatMap((site) => run.steps[site].map((step) => step.seconds || 0)).sort((a, b) => a - b);
  const most = all.length ? Math.min(all[all.length - 1], 3 * all[Math.floor(all.length / 2)]) : 0;
  if (!most) {
    $("steps").replaceChildren(element("p", { class: "faint" }, "no step has ended of late"));
    return;
  }
  const height = Math.max(14, Math.min(110, 300 / sites.length)), left = 130;
  const width = Math.max(340, $("steps").clientWidth);
  const shown = Math.max(12, ...sites.map((site) => run.steps[site].length));
  const gap = sites.length > 8 ? 6 : 12;
  const slot = (width - left) / shown;
  const picture = element("svg", { viewBox: `0 0 ${width} ${sites.length * (height + gap) + 4}`, role: "img",
    "aria-label": "parts of the last steps of each site" });
  sites.forEach((site, row) => {
    const bottom = row * (height + gap) + height;
    const steps = run.steps[site], last = steps[steps.length - 1];
    picture.append(element("text", { x: 0, y: bottom - 2 }, short(site)),
      element("text", { x: left - 8, y: bottom - 2, class: "faint", "text-anchor": "end" }, seconds(last ? last.seconds : null)),
      element("line", { x1: left, x2: width, y1: bottom, y2: bottom, stroke: "var(--line)" }));
    steps.forEach((step, index) => {
      let y = bottom;
      const total = step.seconds || 0;
      const own = { input: step.input_seconds || 0, exposed: step.exposed_seconds || 0, checkpoint: step.checkpoint_seconds || 0 };
      own.compute = Math.max(0, total - own.input - own.exposed - own.checkpoint);
      const bar = element("g", {}, element("title", {}, `${site}, step ${step.step}: ${seconds(total)}; ` +
        PARTS.map((part) => `${PART_NAMES[part]} ${seconds(own[part])}`).join(", ")));
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

// ---- curves

const CURVES = [
  ["loss", "sites", "loss", or((value) => String(Number(value.toPrecision(4))))],
  ["tokens a second", "sites", "tokens_per_second", count],
  ["seconds a step", "sites", "step_seconds", seconds],
  ["share of the step that stands still for other sites", "sites", "exposed", percent],
  ["gradient norm", "sites", "grad_norm", or((value) => String(Number(value.toPrecision(4))))],
  ["bytes before compression, by those sent", "sites", "ratio", or((value) => number(value, 1))],
  ["what the codec loses of gradients (nmse, worst bucket)", "sites", "nmse", or((value) => value.toPrecision(2))],
  ["sent", "links", "bytes_per_second", rate],
  ["round trip", "links", "rtt_seconds", milliseconds],
];
let shownSeconds = 600;
let plots = [];

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Whether someone looks at a part of what is shown, or has the pointer at it.
const studied = () => pointed("curves") || plots.some((plot) =>
  plot.scales.x.min > plot.data[0][0] || plot.scales.x.max < plot.data[0][plot.data[0].length - 1]);

function showCurves(data) {
  for (const plot of plots) plot.destroy();
  plots = [];
  $("curves").replaceChildren();
  if (data.times.length === 0) return;
  const ink = style("--faint"), grid = style("--line"), colours = style("--curves").split(" ");
  for (const [title, group, name, show] of CURVES) {
    const drawn = Object.entries(data[group]).filter(([, series]) => (series[name] || []).some(known));
    if (drawn.length === 0) continue;
    const last = drawn.map(([label, series]) => `${label}: ${show(series[name].findLast(known))}`).join(", ");
    const box = element("div", { role: "img", "aria-label": `${title}; last values: ${last}` });
    $("curves").append(box);
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid } };
    const all = data["of_" + group];
    plots.push(new uPlot({
      title: title + (all > Object.keys(data[group]).length ? ` (${drawn.length} of ${all})` : ""),
      width: box.clientWidth, height: 190,
      cursor: { sync: { key: "run" } },
      scales: { x: { time: true } },
      axes: [{ ...axis, space: 58, values: (_, ticks) => ticks.map((at) => clock(at, data)) },
        { ...axis, size: 84, values: (_, ticks) => ticks.map(show) }],
      series: [{}, ...drawn.map(([label], index) => ({ label: label.replace(" > ", " → "),
        stroke: colours[index % colours.length], dash: index < colours.length ? [] : [5, 4],
        width: 1.5, spanGaps: true, value: (_, value) => show(value) }))],
      legend: { show: drawn.length <= 6 },
    }, [data.times, ...drawn.map(([, series]) => series[name])], box));
  }
}

function clock(at, data) {
  const span = data.times[data.times.length - 1] - data.times[0];
  const date = span > 86400 ? { month: "short", day: "numeric" } : {};
  const time = { hour: "2-digit", minute: "2-digit", hour12: false, ...(span < 1200 ? { second: "2-digit" } : {}) };
  return new Date(1000 * at).toLocaleString("en", { ...date, ...time });
}

function showWindows(change) {
  const choices = [["10 min", 600], ["1 hour", 3600], ["1 day", 86400], ["all", 0]];
  $("windows").replaceChildren(...choices.map(([text, length]) => {
    const button = element("button", { type: "button", "aria-pressed": String(length === shownSeconds) }, text);
    button.addEventListener("click", () => { shownSeconds = length; showWindows(change); change(); });
    return button;
  }));
}

// ---- tables

function showLinks(run) {
  table($("links"), [
    ["from", (link) => link.source], ["to", (link) => link.target],
    ["sends", (link) => rate(link.bytes_per_second), "number", "geocomm_site_link_rate_bytes_per_second"],
    ["planned", (link) => rate(link.planned_bytes_per_second), "number", "geocomm_site_link_planned_rate_bytes_per_second"],
    ["round trip (least)", (link) => `${milliseconds(link.rtt_seconds)} (${milliseconds(link.least_rtt_seconds)})`, "number",
      "geocomm_site_link_rtt_seconds, geocomm_site_link_least_rtt_seconds"],
    ["sent again", (link) => percent(link.retransmitted_share), "number", "geocomm_site_link_retransmitted_ratio"],
    ["clock ahead", (link) => known(link.clock_offset_seconds) ?
      `${milliseconds(link.clock_offset_seconds)} ± ${milliseconds(link.clock_error_seconds)}` : "–", "number",
      "geocomm_site_link_clock_offset_seconds, geocomm_site_link_clock_error_seconds"],
    ["outages", (link) => link.outages ? `${link.outages}, ${seconds(link.outage_seconds)}` : "0", "number",
      "geocomm_site_link_outages_total, geocomm_site_link_outage_seconds_total"],
    ["streams", (link) => link.streams, "number", "geocomm_site_link_streams"],
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
      rank.life === "silent" ? "bad" : ""), "", "geocomm_site_report_age_seconds"],
    ["step", (rank) => whole(rank.step), "number", "geocomm_train_step"],
    ["a step takes", (rank) => seconds(rank.step_seconds), "number", "geocomm_train_step_seconds"],
    ["stands still", (rank) => percent(rank.exposed_share), "number", "geocomm_train_exposed_ratio"],
    ["tokens/s", (rank) => count(rank.tokens_per_second), "number", "geocomm_train_tokens_per_second"],
    ["site's certificate", (rank) => certificate(ends.get(rank.site), run.at), "number",
      "geocomm_site_certificate_left_seconds"],
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
    const members = element("table", {});
    table(members, [["site", (one) => one.site], ["standing", (one) => one.standing],
      ["rounds that counted", (one) => one.rounds, "number"]], run.members);
    parts.push(members);
  }
  if (run.rounds.length > 0) {
    const rounds = element("table", {});
    table(rounds, [["fragment", (one) => one.fragment, "number"], ["round", (one) => one.round, "number"],
      ["phase", (one) => one.phase], ["since", (one) => seconds(one.age_seconds), "number"],
      ["waits for", (one) => one.waits_for.join(", ")], ["counted", (one) => one.counted.join(", ")]], run.rounds);
    parts.push(rounds);
  }
  $("members").parentElement.hidden = parts.length === 0;
  $("members").replaceChildren(...parts);
}

function showOptions(run) {
  const rows = run.options.map((one) => ({ ...one, values: Object.entries(one.values) }));
  const listed = element("table", {});
  table(listed, [["option", (one) => one.name], ["default", (one) => one.default || "–"],
    ["here", (one) => one.values.map(([value, sites]) =>
      (value || "–") + (one.values.length === 1 ? "" : ` (${sites.join(", ")})`)).join("; ")]], rows);
  $("options").replaceChildren(rows.length > 0 ? listed : element("p", { class: "faint" }, "No option differs."));
}

// What is drawn from which parts of the state: only that is drawn anew.
const DRAWN = [
  [showHead, ["step", "sites", "links"]], [showVerdict, ["verdicts", "alerts"]], [showGraph, ["sites", "links"]],
  [showSteps, ["steps"]], [showLinks, ["links"]], [showRanks, ["sites"]], [showEvents, ["events"]],
  [showMembers, ["members", "rounds"]], [showOptions, ["options"]],
];

function show(run, changed) {
  for (const [draw, parts] of DRAWN) if (parts.some((part) => part in changed)) draw(run);
}

function live() {
  let run = {}, stream = null, timer = null;
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
    let wait = 5;
    try {
      const answer = asked || !studied() ? await fetch(`api/curves?seconds=${shownSeconds}`) : {};
      if (answer.ok) {
        const data = await answer.json();
        wait = Math.min(60, Math.max(5, data.interval / 2));
        showCurves(data);
      }
    } catch { /* the stream says so */ }
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(refresh, 1000 * wait, false);
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect(); else { connect(); refresh(false); }
  });
  showWindows(() => refresh(true));
  connect();
  refresh(true);
}

const saved = $("data");
if (saved) {
  const data = JSON.parse(saved.content.textContent);
  show(data.run, data.run);
  showCurves(data.curves);
} else {
  live();
}
