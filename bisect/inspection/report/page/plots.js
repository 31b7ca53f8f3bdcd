"use strict";
/* Plots, all drawn by Chart.js; each has its numbers in a table beside it. They are drawn after the text, one by one. */

const waiting = [], drawn = [];
let onPaper = false;

const colour = (name) => (onPaper ? { "--fore": "#000", "--line": "#bbb", "--series-a": "#0a5fb4", "--series-b": "#c2410c", "--series-c": "#15803d", "--bad": "#8a0a1f", "--warn": "#5c3a00" }[name] : getComputedStyle(document.documentElement).getPropertyValue(name).trim()) || "#777";

const redraw = () => {
  for (const chart of drawn) {
    chart.chart.destroy();
    chart.chart = new Chart(chart.canvas, chart.configure());
  }
};

/* Draws what waits while the page stays responsive; the page is ready when nothing waits. */
lb.drawPlots = () => {
  const next = waiting.shift();
  if (!next) {
    document.documentElement.dataset.ready = "yes";
    return;
  }
  next.chart = new Chart(next.canvas, next.configure());
  drawn.push(next);
  setTimeout(lb.drawPlots, 0);
};

const drawAll = () => {
  while (waiting.length) lb.drawPlots();
};

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
let undo = [];
addEventListener("beforeprint", () => {
  undo = lb.beforePrint.map((prepare) => prepare());
  onPaper = true;
  drawAll();
  redraw();
});
addEventListener("afterprint", () => {
  undo.forEach((back) => back());
  onPaper = false;
  redraw();
});

/* `configure` gives Chart.js's configuration, in today's colours. */
const figure = (label, caption, configure, more) => {
  const canvas = lb.element("canvas", { role: "img", "aria-label": label, ...more });
  const entry = { canvas, configure, chart: null };
  waiting.push(entry);
  entry.figure = lb.element("figure", null, lb.element("div", { class: "plot" }, canvas), lb.element("figcaption", null, caption));
  entry.again = () => {
    if (!entry.chart) return;
    entry.chart.destroy();
    entry.chart = new Chart(canvas, configure());
  };
  return entry;
};

const axis = (title, more = {}) => ({
  title: { display: true, text: title, color: colour("--fore") },
  grid: { color: colour("--line") },
  ...more,
  ticks: { color: colour("--fore"), maxRotation: 60, autoSkip: true, maxTicksLimit: 24, ...(more.ticks || {}) },
});

const options = (x, y, more = {}) => ({
  animation: false,
  responsive: true,
  maintainAspectRatio: false,
  normalized: true,
  interaction: { mode: "nearest", intersect: false },
  ...more,
  scales: { x, y },
  plugins: { legend: { labels: { color: colour("--fore"), usePointStyle: true } }, ...(more.plugins || {}) },
});

const short = (name) => {
  const text = Array.from(lb.plain(String(name ?? "")));
  return text.length > 28 ? `…${text.slice(-27).join("")}` : text.join("");
};

const named = (names) => ({ callback: (value) => (Number.isInteger(value) ? short(names[value]) : "") });

/* Fewer points than this are no curve: no line is drawn through them, and where they are all there is, no plot. */
lb.FEWEST_POINTS = 3;

/* series: [{name, points: [[x, y], …], mark, line, colour, hollow}]; `names` are those of x, where it counts something. */
lb.plotPoints = ({ label, caption, x, y, log, names, series, integer }) => {
  const configure = () => {
    const drawable = (one) => one.points.filter(([, value]) => Number.isFinite(value) && (!log || value > 0)).map(([at, value]) => ({ x: at, y: value }));
    const datasets = series().map((one) => [one, drawable(one)]).map(([one, data]) => ({
      label: one.name,
      data,
      showLine: Boolean(one.line) && (Boolean(one.level) || data.length >= lb.FEWEST_POINTS),
      borderColor: colour(one.colour),
      backgroundColor: one.hollow ? "transparent" : colour(one.colour),
      borderWidth: one.line ? 1.5 : 2,
      borderDash: one.dash || [],
      pointStyle: one.mark || "circle",
      pointRadius: one.line && one.points.length > 60 ? 0 : 4,
      pointHoverRadius: 6,
    }));
    const xAxis = axis(x, { type: "linear", ticks: names ? named(names) : integer ? { precision: 0 } : {} });
    if (names) Object.assign(xAxis, { min: -0.5, max: Math.max(names.length - 0.5, 0.5) });
    const title = (items) => (items.length && names ? short(names[items[0].raw.x]) : items.length ? `${x} ${lb.format(items[0].raw.x)}` : "");
    const tooltip = { callbacks: { title, label: (item) => `${item.dataset.label}: ${lb.format(item.raw.y)}` } };
    return { type: "scatter", data: { datasets }, options: options(xAxis, axis(y, { type: log ? "logarithmic" : "linear", ticks: { callback: (value) => lb.format(value), maxTicksLimit: 8 } }), { plugins: { tooltip } }) };
  };
  return figure(label, caption, configure);
};

/* bars: [[name, count], …] */
lb.plotBars = ({ label, caption, x, y, bars, log }) =>
  figure(label, caption, () => ({
    type: "bar",
    data: { labels: bars.map(([name]) => short(name)), datasets: [{ label: y, data: bars.map(([, count]) => count), backgroundColor: colour("--series-a") }] },
    options: options(axis(x), axis(y, { type: log ? "logarithmic" : "linear", ticks: { precision: 0 } }), { plugins: { legend: { display: false } } }),
  }));

/* ---- layers × ranks ---- */

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const shade = (letter) => {
  const share = (letter.charCodeAt(0) - 97) / 25;
  return [[255, 247, 214], [178, 24, 43]].reduce((low, high) => low.map((from, i) => Math.round(from + share * (high[i] - from))));
};

/* What a cell shows, of each mode a text of `map` with a letter per cell. */
const MAP_MODES = [["made", "verdict on what the layer itself made"], ["verdicts", "worst verdict, inputs included"], ["sizes", "size of the relative difference"]];

/* A pixel for `group` neighbouring layers, the worst of them; Chart.js's axes say where it is put. */
const mapImage = (map, mode, group) => {
  const columns = map.layers.length, image = document.createElement("canvas"), words = map[mode];
  image.width = Math.ceil(columns / group);
  image.height = map.ranks.length;
  const context = image.getContext("2d"), pixels = context.createImageData(image.width, image.height);
  for (let rank = 0; rank < image.height; rank++)
    for (let at = 0; at < image.width; at++) {
      let worst = ".";
      for (let layer = at * group; layer < Math.min((at + 1) * group, columns); layer++) {
        const word = words[rank * columns + layer];
        if (word !== "." && (worst === "." || word > worst)) worst = word;
      }
      if (worst === ".") continue;
      const [r, g, b] = mode === "sizes" ? shade(worst) : rgb(lb.colours[worst]);
      pixels.data.set([r, g, b, 255], 4 * (rank * image.width + at));
    }
  context.putImageData(pixels, 0, 0);
  return image;
};

const sizeText = (letter) => (letter === "." ? "not measured" : letter === "a" ? "at most 1e-12" : `up to ${lb.format(Number((10 ** ((letter.charCodeAt(0) - 97) / 2 - 12)).toPrecision(2)))}`);

lb.mapCell = (map, layer, rank) => {
  const cell = rank * map.layers.length + layer, verdict = map.verdicts[cell], made = map.made[cell];
  const several = map.group > 1 ? ` and the ${map.group - 1} layers behind it` : "";
  return `${map.layers[layer]}${several}, rank ${map.ranks[rank]}: ${verdict === "." ? "nothing compared" : lb.verdicts[verdict]}${made === "." || made === verdict ? "" : ` (made here: ${lb.verdicts[made]})`}, relative L2 ${sizeText(map.sizes[cell])}`;
};

const NARROWEST = 4; /* pixels of a cell */

lb.plotMap = (map) => {
  const columns = map.layers.length, rows = map.ranks.length, at = { layer: 0, rank: 0, shown: false };
  let mode = "made";
  const readout = lb.element("p", { class: "readout", role: "status" });
  const paint = {
    id: "cells",
    beforeDatasetsDraw(chart) {
      const { ctx, chartArea: area } = chart;
      const wide = area.width / columns, high = area.height / rows;
      ctx.save();
      ctx.imageSmoothingEnabled = false;
      const group = Math.max(1, Math.ceil(NARROWEST / wide)); /* layers that share a cell which can be seen */
      ctx.drawImage(mapImage(map, mode, group), area.left, area.top, area.width * (Math.ceil(columns / group) * group / columns), area.height);
      ctx.textAlign = "center";
      ctx.textBaseline = "middle";
      ctx.fillStyle = "#101418";
      ctx.font = "11px sans-serif";
      for (let i = 0; mode !== "sizes" && wide >= 12 && high >= 12 && i < columns * rows; i++)
        if (map[mode][i] !== ".") ctx.fillText(lb.letters[map[mode][i]], area.left + (0.5 + (i % columns)) * wide, area.top + (0.5 + Math.floor(i / columns)) * high);
      if (at.shown) {
        ctx.strokeStyle = colour("--fore");
        ctx.lineWidth = 2;
        ctx.strokeRect(area.left + at.layer * wide - 1, area.top + at.rank * high - 1, Math.max(wide, 3) + 2, Math.max(high, 3) + 2);
      }
      ctx.restore();
    },
  };
  const configure = () => ({
    type: "scatter",
    data: { datasets: [] },
    plugins: [paint],
    options: options(
      axis("layer", { type: "linear", min: -0.5, max: columns - 0.5, grid: { display: false }, ticks: { ...named(map.layers), maxRotation: 0, maxTicksLimit: 7 } }),
      axis("rank", { type: "linear", min: -0.5, max: rows - 0.5, reverse: true, grid: { display: false }, afterBuildTicks: (scale) => { scale.ticks = map.ranks.map((_, value) => ({ value })).filter(({ value }) => value % Math.ceil(rows / 16) === 0); }, ticks: { autoSkip: false, callback: (value) => (Number.isInteger(value) ? map.ranks[value] : "") } }),
      { events: [], plugins: { legend: { display: false }, tooltip: { enabled: false } } },
    ),
  });
  const entry = figure("Layer by rank map. Arrow keys move from cell to cell; what it holds is said below.", "", configure, { tabindex: "0", role: "application", id: lb.freshId("map") });
  entry.canvas.parentNode.style.height = `${Math.min(26, 4.5 + 1.2 * rows)}rem`; /* names of layers take some 3 of them */
  const show = (layer, rank) => {
    Object.assign(at, { layer: Math.min(Math.max(layer, 0), columns - 1), rank: Math.min(Math.max(rank, 0), rows - 1), shown: true });
    readout.replaceChildren(lb.text(lb.mapCell(map, at.layer, at.rank)));
    if (entry.chart) entry.chart.draw();
  };
  entry.canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-columns, 0], End: [columns, 0], PageUp: [0, -rows], PageDown: [0, rows] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    show(at.layer + step[0], at.rank + step[1]);
  });
  entry.canvas.addEventListener("pointermove", (event) => {
    const area = entry.chart && entry.chart.chartArea;
    if (!area) return;
    const layer = Math.floor(((event.offsetX - area.left) / area.width) * columns), rank = Math.floor(((event.offsetY - area.top) / area.height) * rows);
    if (layer >= 0 && layer < columns && rank >= 0 && rank < rows) show(layer, rank);
  });
  const choice = lb.select("Colour by", MAP_MODES, (value) => {
    mode = value;
    explain();
    entry.again();
  });
  const swatch = (hex) => {
    const box = lb.element("span", { class: "swatch" });
    box.style.backgroundColor = hex;
    return box;
  };
  const legend = lb.element("ul", { class: "legend", "aria-label": "Colours and letters of the map" });
  const explain = () => {
    const seen = lb.verdicts.map((_, i) => i).filter((i) => mode !== "sizes" && map[mode].includes(String(i)));
    legend.replaceChildren(...(mode === "sizes" ? [lb.element("li", null, "light: small, dark: large")] : seen.map((i) => lb.element("li", null, swatch(lb.colours[i]), `${lb.letters[i]} ${lb.verdicts[i]}`))));
  };
  explain();
  return lb.element("div", null, lb.element("div", { class: "controls" }, choice, legend), entry.figure, readout);
};
