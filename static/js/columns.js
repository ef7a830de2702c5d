// Columns that are made wider or narrower: drag a head's right edge, or give it the focus and use ← and →; Home: as its
// contents are. The server keeps the widths with the person.

import { tell } from "./asking.js";

const STEP = 16;
const NARROWEST = 40;
const WIDE = matchMedia("(min-width: 721px)"); // below, columns are left out and the rest need their room
let widths = {};

export function startColumns() {
  const table = document.querySelector("[data-keep-widths]");
  if (!table) return;
  for (const head of heads(table)) {
    if (head.dataset.width) widths[head.dataset.column] = Number(head.dataset.width);
    head.append(makeEdge(table, head));
  }
  draw(table);
  WIDE.addEventListener("change", () => draw(table));
}

function heads(table) {
  return [...table.querySelectorAll("th[data-column]")];
}

function makeEdge(table, head) {
  const edge = document.createElement("span");
  edge.className = "edge";
  edge.tabIndex = 0;
  edge.setAttribute("role", "separator");
  edge.setAttribute("aria-orientation", "vertical");
  edge.setAttribute("aria-valuemin", NARROWEST);
  edge.setAttribute("aria-label", `Width of ${head.textContent}`);
  edge.addEventListener("pointerdown", (event) => drag(table, head, edge, event));
  edge.addEventListener("keydown", (event) => press(table, head, event));
  edge.addEventListener("dblclick", () => set(table, head, null, true));
  return edge;
}

function drag(table, head, edge, event) {
  const start = event.clientX;
  const width = head.offsetWidth;
  const move = (at) => set(table, head, width + at.clientX - start, false);
  edge.setPointerCapture(event.pointerId);
  edge.addEventListener("pointermove", move);
  edge.addEventListener("lostpointercapture", () => {
    edge.removeEventListener("pointermove", move);
    keep(table);
  }, { once: true });
  event.preventDefault();
}

function press(table, head, event) {
  const step = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
  if (step) set(table, head, head.offsetWidth + step, true);
  else if (event.key === "Home") set(table, head, null, true);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function set(table, head, width, isLast) {
  if (width === null) delete widths[head.dataset.column];
  else widths[head.dataset.column] = Math.max(NARROWEST, Math.round(width));
  draw(table);
  if (isLast) keep(table);
}

// With a width of its own anywhere the table no longer looks at its contents: all other columns get the width they had.
function draw(table) {
  table.classList.remove("is-sized");
  table.style.minWidth = "";
  for (const head of heads(table)) head.style.width = "";
  const natural = heads(table).map((head) => head.offsetWidth);
  heads(table).forEach((head, place) => say(head, natural[place]));
  if (!WIDE.matches || Object.keys(widths).length === 0) return;
  let sum = 0;
  heads(table).forEach((head, place) => {
    const width = widths[head.dataset.column] ?? natural[place];
    head.style.width = `${width}px`;
    say(head, width);
    sum += width;
  });
  const choose = table.querySelector("th.choose");
  if (choose) choose.style.width = "44px";
  table.style.minWidth = `${sum + 240}px`; // the first words keep some room
  table.classList.add("is-sized");
}

function say(head, width) {
  head.querySelector(".edge").setAttribute("aria-valuenow", width);
}

let waiting = 0;
function keep(table) {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const body = new FormData();
    body.set("widths", JSON.stringify(widths));
    tell(table.dataset.keepWidths, body, { keepalive: true }).catch(() => {}); // they are for this visit, then
  }, 300);
}
