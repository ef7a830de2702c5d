// Draws the run's curves with uPlot over the server's plain lines, and moves them when points come. Without uPlot the
// plain lines stay, and move too.

const HEIGHT = 132;
const plots = new Map();
let uPlot = null;

export async function startCharts() {
  const section = document.getElementById("curves");
  if (!section) return;
  if (section.dataset.uplot) uPlot = (await import(section.dataset.uplot)).default;
  draw();
  document.addEventListener("live:refreshed", draw);
  document.addEventListener("theme:changed", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(resize).observe(section);
}

function readCurves() {
  const data = document.getElementById("curve-data");
  return data ? JSON.parse(data.textContent) : [];
}

function draw() {
  const nothing = document.getElementById("no-curves");
  const curves = readCurves();
  if (nothing && curves.length) nothing.remove();
  for (const curve of curves) {
    const figure = document.getElementById(`chart-${curve.name}`);
    if (!figure) continue;
    const last = curve.values.findLast((value) => value !== null);
    figure.querySelector("[data-value]").textContent = readable(last);
    figure.dataset.points = String(curve.steps.length);
    if (uPlot) plot(figure, curve);
    else figure.querySelector("polyline").setAttribute("points", line(curve));
  }
}

function plot(figure, curve) {
  const data = [curve.steps, curve.values, ...(curve.lost ? [curve.lost] : [])];
  const old = plots.get(curve.name);
  if (old && old.series.length === data.length) {
    old.setData(data);
    return;
  }
  old?.destroy();
  const box = figure.querySelector(".plot");
  plots.set(curve.name, new uPlot(options(box, curve), data, box));
  figure.classList.add("is-drawn");
}

function options(box, curve) {
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => resolveColour(css.getPropertyValue(name));
  const font = `11px ${css.getPropertyValue("--font")}`;
  const axis = { stroke: colour("--ink-3"), font, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const series = [
    {},
    { stroke: colour("--act"), width: 1.7, points: { show: curve.steps.length < 40, size: 5, fill: colour("--sheet") } },
  ];
  if (curve.lost) series.push({ stroke: colour("--ink-3"), width: 1.2, dash: [4, 4], points: { show: false } });
  return {
    width: Math.max(120, box.clientWidth),
    height: HEIGHT,
    padding: [8, 6, 0, 0],
    cursor: { y: false, points: { size: 7 }, sync: { key: "run" } },
    legend: { show: false },
    scales: {
      x: { time: false, range: (_plot, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) },
      y: { range: (_plot, low, high) => above(curve.from_zero, low === high ? around(low) : uPlot.rangeNum(low, high, 0.1, true)) },
    },
    axes: [
      { ...axis, size: 24, space: 50, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
      { ...axis, size: 46, space: 28, values: (_plot, ticks) => ticks.map(readable) },
    ],
    series,
    hooks: { setCursor: [(plot) => showValue(box.closest("figure"), curve.name, plot.cursor.idx)] },
  };
}

// One value alone has no spread of its own: a tenth of it on either side.
function around(value) {
  const margin = Math.abs(value) / 10 || 1;
  return [value - margin, value + margin];
}

// What cannot be negative stands on an axis without negative numbers.
function above(isFromZero, [low, high]) {
  return isFromZero ? [Math.max(0, low), high] : [low, high];
}

// A canvas cannot read light-dark(): let the browser compute the colour.
function resolveColour(value) {
  const probe = document.createElement("span");
  probe.style.color = value;
  document.body.append(probe);
  const computed = getComputedStyle(probe).color;
  probe.remove();
  return computed;
}

function showValue(figure, name, place) {
  const data = plots.get(name)?.data;
  if (!data) return;
  const value = place == null ? data[1].findLast((item) => item !== null) : data[1][place];
  const where = place == null ? "" : `training step ${data[0][place]}: `;
  figure.querySelector("[data-value]").textContent = `${where}${readable(value)}`;
}

function redraw() {
  for (const old of plots.values()) old.destroy();
  plots.clear();
  if (uPlot) draw();
}

function resize() {
  for (const old of plots.values()) {
    const width = Math.max(120, old.root.parentElement.clientWidth);
    if (Math.abs(width - old.width) > 1) old.setSize({ width, height: HEIGHT });
  }
}

function readable(value) {
  if (value === null || value === undefined) return "–";
  const [sign, size] = value < 0 ? ["−", -value] : ["", value];
  if (size !== 0 && size < 0.001) return sign + size.toExponential(1);
  if (size >= 1000) return sign + Math.round(size).toLocaleString("en");
  return sign + Number(size.toPrecision(4));
}

function line(curve) {
  const pairs = curve.steps.map((step, place) => [step, curve.values[place]]).filter(([, value]) => value !== null);
  if (!pairs.length) return "";
  if (pairs.length === 1) return "4,48 296,48";
  const values = pairs.map(([, value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [first, last] = [pairs[0][0], pairs.at(-1)[0]];
  return pairs
    .map(([step, value]) => `${4 + (292 * (step - first)) / (last - first || 1)},${92 - (88 * (value - low)) / (high - low || 1)}`)
    .join(" ");
}
