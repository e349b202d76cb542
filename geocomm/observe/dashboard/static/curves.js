// The curves of a run, and the part of the time that they and the steps show.
"use strict";

const digits = or((value) => String(Number(value.toPrecision(4))));
const CURVES = [ // title, group, series, how a value is written
  ["loss", "sites", ["loss", "held_out_loss"], digits],
  ["tokens a second", "sites", ["tokens_per_second"], count],
  ["seconds a step", "sites", ["step_seconds"], seconds],
  ["share of the step that stands still for other sites", "sites", ["exposed"], percent],
  ["gradient norm", "sites", ["grad_norm"], digits],
  ["bytes before compression, by those sent", "sites", ["ratio"], or((value) => number(value, 1))],
  ["what the codec loses of gradients (nmse, worst bucket)", "sites", ["nmse"], or((value) => value.toPrecision(2))],
  ["sent", "links", ["bytes_per_second"], rate],
  ["round trip", "links", ["rtt_seconds"], milliseconds],
];
const HELD_OUT = "held_out_loss";
const MOST_NAMED = 6; // lines of one kind that have a legend
const ZOOMS = [
  ["zoom in", ([first, last]) => [first + (last - first) / 4, last - (last - first) / 4]],
  ["zoom out", ([first, last]) => [first - (last - first) / 2, last + (last - first) / 2]],
  ["← earlier", ([first, last]) => [first - (last - first) / 2, last - (last - first) / 2]],
  ["later →", ([first, last]) => [first + (last - first) / 2, last + (last - first) / 2]],
  ["show all", () => all],
];
let shownSeconds = 600; // the last ones; 0: of all the run
let zoomed = null; // the part of the time that is shown, [first, last] in Unix seconds; null: all that was read
let all = [0, 0]; // what was read while nothing was zoomed
let leastSeconds = 4; // that can be zoomed to
let charts = [];
const hidden = new Set(); // lines, by their chart's title and their name

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Whether someone looks at a part of what is shown, or has the pointer at it.
const studied = () => zoomed !== null || pointed("curves");

function showCurves(data) {
  if (!zoomed && data.times.length > 0) all = [data.times[0], data.times.at(-1)];
  const ink = style("--faint"), grid = style("--line"), colours = style("--curves").split(" ");
  const wanted = data.times.length === 0 ? [] : CURVES.map(([title, group, names, show]) => {
    const keys = Object.keys(data[group]), of = data["of_" + group];
    const drawn = names.flatMap((name) => linesOf(data[group], name)).filter((one) => one.series.some(known));
    const head = title + (of > keys.length ? ` (${keys.length} of ${of})` : "");
    const look = JSON.stringify([ink, head, drawn.map(({ label, index }) => [label, index])]);
    return { title, head, look, show, drawn, times: data.times, named: keys.length <= MOST_NAMED };
  }).filter((one) => one.drawn.length > 0);
  const before = charts;
  charts = wanted.map((one, place) => {
    const old = before[place];
    if (!old || old.look !== one.look) return makeChart(one, old, ink, grid, colours);
    old.plot.setData(pointsOf(Object.assign(old, one))); // the chart stays, and the keyboard where it is on its legend
    return old;
  });
  for (const chart of before.slice(charts.length)) remove(chart);
  showPart();
}

function remove(chart) {
  chart.plot.destroy();
  chart.whole.remove();
}

new ResizeObserver(() => {
  for (const { plot, box } of charts)
    if (plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height: plot.height });
}).observe($("curves"));

const pointsOf = (chart) => [chart.times, ...chart.drawn.map((line) => line.series)];

// old: the chart in whose place it comes, if there is one.
function makeChart(one, old, ink, grid, colours) {
  const box = element("div", { role: "img" }), whole = element("div", {}, box);
  $("curves").insertBefore(whole, old ? old.whole : null);
  if (old) remove(old);
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid } };
  const series = one.drawn.map(({ name, index, label }) => ({
    stroke: known(index) ? colours[index % colours.length] : ink,
    dash: name === HELD_OUT ? [2, 3] : index < colours.length ? [] : [5, 4],
    width: 1.5, spanGaps: true, show: !hidden.has(`${one.title}: ${label}`) }));
  const chart = { ...one, box, whole };
  chart.plot = new uPlot({
    title: one.head, width: box.clientWidth, height: 190,
    cursor: { drag: { setScale: false }, sync: { key: "run", filters: { pub: (type) => type.startsWith("mousem") } } },
    hooks: { setSelect: [zoomToSelected], setCursor: [() => showValues(chart)] },
    scales: { x: { time: true } },
    axes: [{ ...axis, space: 58, values: (own, ticks) => ticks.map((at) => clock(at, own.scales.x.max - own.scales.x.min)) },
      { ...axis, size: 84, values: (_, ticks) => ticks.map(one.show) }],
    series: [{}, ...series],
    legend: { show: false },
  }, pointsOf(one), box);
  if (one.named) whole.append(legend(chart, series));
  return chart;
}

// ---- the legend: a button for each line, which hides it or shows it again, and its value

function legend(chart, series) {
  chart.at = element("span", { class: "faint" });
  chart.values = series.map(() => element("span", {}));
  const entries = chart.drawn.map(({ label }, place) => {
    const { stroke, dash, show } = series[place], key = `${chart.title}: ${label}`;
    const own = button("", { "aria-pressed": show }, () => {
      if (!hidden.delete(key)) hidden.add(key);
      own.setAttribute("aria-pressed", !hidden.has(key));
      chart.plot.setSeries(place + 1, { show: !hidden.has(key) });
    });
    const sample = element("i", {});
    sample.style.borderTop = `2px ${dash.length === 0 ? "solid" : dash[0] < 3 ? "dotted" : "dashed"} ${stroke}`;
    own.append(sample, label);
    return element("span", {}, own, chart.values[place]);
  });
  return element("div", { class: "buttons legend", role: "group", "aria-label": `lines of ${chart.title}` },
    chart.at, ...entries);
}

// Those where the pointer is, on whichever chart; the last ones while it is nowhere.
function showValues({ plot, show, drawn, times, at, values }) {
  if (!values) return;
  const { idx } = plot.cursor, end = pastPart(times), [first, last] = zoomed || all;
  at.textContent = known(idx) ? clock(times[idx], last - first) : "last";
  drawn.forEach(({ series }, place) => {
    values[place].textContent = show(known(idx) ? series[idx] : series.slice(0, end).findLast(known));
  });
}

// One line for each site or link; one for all where they have evaluated the same weights, as they mostly do.
function linesOf(rows, name) {
  const lines = Object.keys(rows).map((key, index) => ({ name, index, series: rows[key][name] || [],
    label: key.replace(" > ", " → ") + (name === HELD_OUT ? ", held out" : "") }));
  const isOne = name === HELD_OUT && lines.every((one) => String(one.series) === String(lines[0].series));
  return isOne ? lines.slice(0, 1).map((one) => ({ ...one, index: null, label: "held out" })) : lines;
}

const timeFormat = (more) => new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hour12: false, ...more });
const WITH_DAY = timeFormat({ month: "short", day: "numeric" }), OF_DAY = timeFormat({});
const WITH_SECONDS = timeFormat({ second: "2-digit" });

function clock(at, span) {
  const shown = span > 86400 ? WITH_DAY : span < 1200 ? WITH_SECONDS : OF_DAY;
  return shown.format(1000 * at);
}

// ---- the part of the time

let whenZoomed = () => {};

function zoomTo([first, last]) {
  const length = Math.max(last - first, leastSeconds);
  const begin = Math.max(all[0], Math.min(first, all[1] - length));
  zoomed = length < all[1] - all[0] ? [begin, begin + length] : null;
  showPart();
  whenZoomed();
}

function zoomToSelected(plot) {
  const { left, width } = plot.select;
  if (width === 0) return;
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  zoomTo([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
}

function showPart() {
  const [first, last] = zoomed || all;
  const span = last - first;
  $("part").textContent = zoomed ? `from ${clock(first, span)} to ${clock(last, span)}` : "";
  for (const chart of charts) {
    if (span > 0) chart.plot.setScale("x", { min: first, max: last });
    const end = pastPart(chart.times);
    const values = chart.drawn.map(({ label, series }) => `${label}: ${chart.show(series.slice(0, end).findLast(known))}`);
    chart.box.setAttribute("aria-label", `${chart.title}; last values: ${values.join(", ")}`);
    showValues(chart);
  }
}

// The place after the last of these times that is shown.
const pastPart = (times) => times.findLastIndex((at) => at <= (zoomed || all)[1]) + 1;

function showZooms(changed) {
  whenZoomed = changed;
  $("zoom").append(...ZOOMS.map(([text, part]) => button(text, {}, () => zoomTo(part(zoomed || all)))));
  for (const id of ["curves", "steps"]) $(id).addEventListener("dblclick", () => zoomTo(all));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && zoomed) zoomTo(all); });
}

function showWindows(changed) {
  const choices = [["10 min", 600], ["1 hour", 3600], ["1 day", 86400], ["all", 0]];
  const buttons = choices.map(([text, length]) => button(text, { "aria-pressed": length === shownSeconds }, (own) => {
    shownSeconds = length;
    for (const one of buttons) one.setAttribute("aria-pressed", one === own);
    zoomed = null;
    changed();
  }));
  $("windows").append(...buttons);
  $("windows").hidden = false;
}

function button(text, attributes, act) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", () => act(made));
  return made;
}
