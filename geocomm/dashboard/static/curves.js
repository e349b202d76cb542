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
const LEAST_SECONDS = 4; // that can be zoomed to
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
let charts = [];

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Whether someone looks at a part of what is shown, or has the pointer at it.
const studied = () => zoomed !== null || pointed("curves");

function showCurves(data) {
  for (const chart of charts) chart.plot.destroy();
  charts = [];
  $("curves").replaceChildren();
  if (data.times.length === 0) return;
  if (!zoomed) all = [data.times[0], data.times[data.times.length - 1]];
  const ink = style("--faint"), grid = style("--line"), colours = style("--curves").split(" ");
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid } };
  for (const [title, group, names, show] of CURVES) {
    const keys = Object.keys(data[group]);
    const drawn = names.flatMap((name) => linesOf(data[group], name)).filter((one) => one.series.some(known));
    if (drawn.length === 0) continue;
    const box = element("div", { role: "img" });
    $("curves").append(box);
    const plot = new uPlot({
      title: title + (data["of_" + group] > keys.length ? ` (${keys.length} of ${data["of_" + group]})` : ""),
      width: box.clientWidth, height: 190,
      cursor: { drag: { setScale: false }, sync: { key: "run", filters: { pub: (type) => type.startsWith("mousem") } } },
      hooks: { setSelect: [zoomToSelected] },
      scales: { x: { time: true } },
      axes: [{ ...axis, space: 58, values: (own, ticks) => ticks.map((at) => clock(at, own.scales.x.max - own.scales.x.min)) },
        { ...axis, size: 84, values: (_, ticks) => ticks.map(show) }],
      series: [{}, ...drawn.map(({ label, name, index }) => ({ label,
        stroke: known(index) ? colours[index % colours.length] : ink,
        dash: name === HELD_OUT ? [2, 3] : index < colours.length ? [] : [5, 4],
        width: 1.5, spanGaps: true, value: (_, value) => show(value) }))],
      legend: { show: keys.length <= 6 },
    }, [data.times, ...drawn.map((one) => one.series)], box);
    charts.push({ title, show, drawn, box, plot, times: data.times });
  }
  showPart();
}

// One line for each site or link; one for all where they have evaluated the same weights, as they mostly do.
function linesOf(rows, name) {
  const lines = Object.keys(rows).map((key, index) => ({ name, index, series: rows[key][name] || [],
    label: key.replace(" > ", " → ") + (name === HELD_OUT ? ", held out" : "") }));
  const isOne = name === HELD_OUT && lines.every((one) => String(one.series) === String(lines[0].series));
  return isOne ? lines.slice(0, 1).map((one) => ({ ...one, index: null, label: "held out" })) : lines;
}

function clock(at, span) {
  const date = span > 86400 ? { month: "short", day: "numeric" } : {};
  const time = { hour: "2-digit", minute: "2-digit", hour12: false, ...(span < 1200 ? { second: "2-digit" } : {}) };
  return new Date(1000 * at).toLocaleString("en", { ...date, ...time });
}

// ---- the part of the time

let whenZoomed = () => {};

function zoomTo([first, last]) {
  const length = Math.max(last - first, LEAST_SECONDS);
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
  for (const { title, show, drawn, box, plot, times } of charts) {
    if (span > 0) plot.setScale("x", { min: first, max: last });
    const end = times.findLastIndex((at) => at <= last) + 1;
    const values = drawn.map(({ label, series }) => `${label}: ${show(series.slice(0, end).findLast(known))}`);
    box.setAttribute("aria-label", `${title}; last values: ${values.join(", ")}`);
  }
}

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
