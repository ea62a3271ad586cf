"use strict";
// What the machine does: phases of every update, who did what when during one, throughput, queue and memory.

const PHASES = { gen: "sampling", reward: "waiting for rewards", ref: "reference log-probs", old_log_prob: "old log-probs", adv: "advantages",
  update_actor: "policy update", update_weights: "weight sync", testing: "validation", encode: "encoding",
  values: "value network", save_checkpoint: "saving a checkpoint", update_weights_vllm: "weight sync to vLLM", step: "the update" };
const AFTER = ["testing", "save_checkpoint"]; // an update, and no part of it
const HELD = { memory_allocated: "GPU, allocated", memory_reserved: "GPU, reserved", cpu_memory: "RAM" };

const broad = () => (innerWidth < 560 ? 400 : 760);

board.views.time = async function (place, context) {
  const state = context.state;
  const found = await board.get("time", { run: context.id, update: state.update === undefined || state.update === "last" ? null : state.update });
  if (!found.x.length) { fill(place, element("p", {}, "No update has been timed yet.")); return; }
  const names = Object.keys(found.phases).filter((name) => !AFTER.includes(name) && found.means[name] > 0)
    .sort((a, b) => found.means[b] - found.means[a]);
  const main = names.slice(0, 7);
  const colour = new Map(main.map((name, i) => [name, `c${i}`]));
  const curves = await context.curves();
  fill(place, element("h2", {}, "An update, on average"), averages(found, names, colour),
    element("h2", {}, "Seconds of every update"), stacked(found, main, colour),
    element("h2", {}, "Who did what, when"), timeline(found, colour, (update) => {
      state.update = update;
      context.remember();
      board.views.time(place, context);
    }),
    drawn(curves, "Throughput and utilisation", "Speed", /^perf\/(?!.*(memory|_gb))/), drawn(curves, "Queue between sampling and training", "Pipeline", /^pipeline\//),
    element("h2", {}, "Memory"), memory(curves));
};

function drawn(curves, title, part, names) {
  const charts = curves.charts.filter((chart) => chart.part === part), look = plainView(curves.last);
  const same = Object.entries(curves.constant).filter(([name]) => names.test(name)).map(([name, value]) => `${name} = ${exact(value)}`);
  return charts.length + same.length ? [element("h2", {}, title), element("div.charts.small", {}, charts.map((chart) => chartBox(look, () => chart))),
    same.length ? element("p.soft", {}, `The same at every update: ${same.join(", ")}.`) : null] : null;
}

function averages(found, names, colour) {
  const step = found.means.step;
  const rest = step - names.reduce((sum, name) => sum + found.means[name], 0);
  const rows = [...names.map((name) => [PHASES[name] || name, found.means[name], colour.get(name) || "rest"]),
    ...(rest > 0.005 * step ? [["everything else", rest, "rest"]] : [])];
  return element("table.parts", {}, element("tbody", {}, rows.map(([title, value, style]) => element("tr", {},
    element("td", {}, title), element("td.n", {}, seconds(value)), element("td.n", {}, `${Math.round(100 * value / step)} %`),
    element("td.wide", {}, element("svg.bar", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      element(`rect.fill.${style}`, { width: Math.min(100, 100 * value / step), height: 8 })))))));
}

function stacked(found, main, colour) {
  const width = broad(), height = 190, left = 52, bottom = height - 24;
  const most = Math.max(...found.step), steps = ticks(0, most), top = steps[steps.length - 1];
  const y = (value) => bottom - (bottom - 8) * value / top;
  const each = (width - left - 8) / found.x.length;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `seconds of ${plural(found.x.length, "update")} by phase` });
  for (const one of steps) append(svg, [element("path.rule", { d: `M${left} ${y(one)}H${width - 8}` }), element("text.end", { x: left - 6, y: y(one) + 3.5 }, tick(one, steps[1]))]);
  const paths = new Map([...main, "rest"].map((name) => [name, ""]));
  found.x.forEach((_, i) => {
    let base = 0;
    const box = (name, value) => {
      if (value <= 0) return;
      const x = left + i * each;
      paths.set(name, `${paths.get(name)}M${x.toFixed(1)} ${y(base).toFixed(1)}V${y(base + value).toFixed(1)}H${(x + Math.max(each * 0.86, 0.6)).toFixed(1)}V${y(base).toFixed(1)}Z`);
      base += value;
    };
    for (const name of main) box(name, found.phases[name][i] || 0);
    box("rest", found.step[i] - base);
  });
  for (const [name, d] of paths) append(svg, [element(`path.fill.${colour.get(name) || "rest"}`, { d })]);
  const marks = found.x.length <= 12 ? found.x.keys() : [0, Math.floor(found.x.length / 2), found.x.length - 1];
  for (const i of new Set(marks)) append(svg, [element("text.middle", { x: left + (i + 0.5) * each, y: height - 8 }, found.x[i])]);
  return element("figure.chart.broad", {}, svg, fillLegend([...main, "rest"], colour));
}

function fillLegend(names, colour) {
  return element("ul.legend", {}, names.map((name) => element("li", {},
    element("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, element(`rect.fill.${colour.get(name) || "rest"}`, { width: 22, height: 8 })),
    element("span", {}, PHASES[name] || (name === "rest" ? "everything else" : name)))));
}

function timeline(found, colour, select) {
  if (!found.updates.length) return element("p.soft", {}, "This run recorded no timeline.");
  const place = found.updates.indexOf(found.update), most = found.updates.length - 1;
  const said = element("output", {}, `update ${found.update}`);
  const slider = element("input", { type: "range", min: 0, max: most, value: place, "aria-label": "policy update",
    oninput: () => { said.textContent = `update ${found.updates[slider.value]}`; },
    onchange: () => select(Number(slider.value) === most ? "last" : found.updates[slider.value]) });
  const end = Math.max(1e-9, ...found.spans.flatMap((lane) => lane.spans.map((one) => one[1] + one[2])));
  const width = broad(), left = 110, high = 20, height = found.spans.length * (high + 6) + 30;
  const x = (at) => left + (width - left - 10) * at / end;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `timeline of update ${found.update} over ${plural(found.spans.length, "process", "processes")}` });
  found.spans.forEach((lane, row) => {
    const y = 4 + row * (high + 6);
    append(svg, [element("text.end", { x: left - 8, y: y + 14 }, lane.lane.slice(0, 18)), element("path.rule", { d: `M${left} ${y + high}H${width - 10}` })]);
    for (const [name, start, length] of lane.spans) {
      const title = document.createElementNS(SVG, "title");
      title.textContent = `${PHASES[name] || name}: ${seconds(length)}, from ${seconds(start)}`;
      append(svg, [append(element(`rect.fill.${colour.get(name) || "rest"}`, { x: x(start).toFixed(1), y, height: high, width: Math.max(0.7, x(start + length) - x(start)).toFixed(1) }), [title])]);
    }
  });
  for (const one of ticks(0, end).filter((at) => at <= end)) append(svg, [element("text.middle", { x: x(one), y: height - 8 }, seconds(one))]);
  return element("div", {}, most > 0 && !board.frozen ? element("div.tools.walk", {}, slider, said) : said, element("figure.chart.broad", {}, svg));
}

function memory(curves) {
  const charts = curves.charts.filter((chart) => chart.part === "Memory");
  if (!charts.length) return element("p.soft", {}, "This run recorded no memory.");
  const look = plainView(curves.last);
  return element("div", {}, heldTable(curves, charts),
    element("div.charts.small", {}, charts.filter((chart) => !heldName(chart.title)).map((chart) => chartBox(look, () => chart))));
}

function heldName(name) {
  const [, kind, phase] = /^perf\/(memory_allocated|memory_reserved|cpu_memory)_gb\/(.+)$/.exec(name) || [];
  return kind && { kind, phase };
}

// what each phase held at most in the last update that told
function heldTable(curves, charts) {
  const phases = new Map(), kinds = new Set();
  const note = (name, value) => {
    const held = heldName(name);
    if (!held) return;
    kinds.add(held.kind);
    phases.set(held.phase, { ...phases.get(held.phase), [held.kind]: value });
  };
  for (const chart of charts) {
    const value = chart.series[0].y.filter((one) => one !== null).pop();
    for (const name of [chart.title, ...chart.also]) note(name, value);
  }
  for (const [name, value] of Object.entries(curves.constant)) note(name, value);
  if (!phases.size) return null;
  const shown = Object.keys(HELD).filter((kind) => kinds.has(kind));
  const alike = new Map(); // phases that held the same are one row
  for (const [phase, held] of [...phases].sort(([one], [other]) => one < other ? -1 : 1)) {
    const cells = shown.map((kind) => held[kind] === undefined ? "" : `${number(held[kind])} GB`), key = cells.join();
    alike.set(key, { cells, names: [...(alike.get(key) || { names: [] }).names, PHASES[phase] || phase] });
  }
  return element("div", {}, element("table", {},
    element("thead", {}, element("tr", {}, element("th", {}, "most held in the last update"), shown.map((kind) => element("th.n", {}, HELD[kind])))),
    element("tbody", {}, [...alike.values()].map(({ cells, names }) => element("tr", {},
      element("td", {}, names.join(", ")), cells.map((text) => element("td.n", {}, text)))))));
}
