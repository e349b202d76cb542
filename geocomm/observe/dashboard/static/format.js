// How values are written, and elements of the page made. Everything that comes from a run is set as text, never as markup:
// names are whatever sites chose.
"use strict";

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
const numbers = [0, 1, 2, 3, 4].map((digits) => // made once: that takes longer than to use one
  new Intl.NumberFormat("en", { maximumFractionDigits: digits, minimumFractionDigits: digits }));
const number = (value, digits) => numbers[digits].format(value);
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

let metrics = {}; // what Prometheus calls the fields of the state

// The tooltip of a number: where Prometheus has it. fields: such as "site.step", with commas between them.
const behind = (fields) =>
  (fields ? { title: "Prometheus: " + fields.split(", ").map((field) => metrics[field]).join(", ") } : {});

// Rows stay, and cells whose text does: what someone selects or reads there is not taken away.
function table(target, columns, rows) {
  if (!target.tHead) {
    const head = columns.map(([name, , kind, metric]) =>
      element("th", { scope: "col", ...(kind ? { class: kind } : {}), ...behind(metric) }, name));
    target.append(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}));
  }
  const body = target.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, place) => {
    const line = body.rows[place] || body.insertRow();
    columns.forEach(([, show, kind], column) => {
      const cell = line.cells[column] || line.appendChild(element("td", kind ? { class: kind } : {}));
      const value = show(row) ?? "", content = value instanceof Node ? value : document.createTextNode(value);
      if (!cell.firstChild || !cell.firstChild.isEqualNode(content)) cell.replaceChildren(content);
    });
  });
}

function newTable(columns, rows) {
  const made = element("table", {});
  table(made, columns, rows);
  return made;
}

function marked(text, kind) { return element("span", { class: kind }, text); }

// Whether the pointer is there: tooltips of what is drawn anew would vanish.
const pointed = (id) => matchMedia("(hover: hover)").matches && $(id).matches(":hover");
