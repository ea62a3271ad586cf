"use strict";
// Runs beside each other: curves with seeds as bands, options in which they differ, the same prompts' samples.

board.views.compare = async function (place, names, remember) {
  const found = await board.get("compare", { run: names });
  const groups = found.seeds.map((some) => some.map((name) => found.runs.find((one) => one.id === name)).filter(Boolean));
  const state = { bands: groups.some((some) => some.length > 1), find: "" };
  const charts = element("div");
  const search = element("input", { type: "search", placeholder: "find a metric", "aria-label": "find a metric", oninput: () => { state.find = search.value; draw(); } });
  const draw = () => compareCharts(charts, found, groups, state);
  fill(place,
    element("p.crumbs", {}, element("a", { href: "#/" }, "all runs")),
    element("h1", {}, `${plural(found.runs.length, "run")} beside each other`),
    runLegend(found, groups, state),
    found.rewards ? element("div.warning", {}, element("p", {}, found.rewards)) : null,
    element("div.tools", {}, search, groups.some((some) => some.length > 1) && toggle("seeds as bands", state.bands, (on) => {
      state.bands = on;
      draw();
      place.querySelector(".runs-legend").replaceWith(runLegend(found, groups, state));
    })),
    charts,
    element("h2", {}, "Differences of the configurations"), differencesTable(found),
    element("h2", {}, "The same prompts"), samePrompts(found));
  draw();
};

function nameOf(some) {
  return some.length > 1 ? `${some[0].name} and ${some.length - 1} more ${some.length > 2 ? "seeds" : "seed"}` : some[0].name;
}

function runLegend(found, groups, state) {
  const items = state.bands ? groups.map((some) => [nameOf(some), some[0]]) : found.runs.map((one) => [one.name, one]);
  return element("ul.legend.runs-legend", {}, items.map(([name, one], i) => element("li", {},
    element("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, element(`path.line.c${i % COLOURS}`, { d: "M1 4H21" })),
    board.frozen ? name : element("a", { href: `#/run?run=${encodeURIComponent(one.id)}` }, name))));
}

function compareCharts(place, found, groups, state) {
  const wanted = state.find.toLowerCase();
  const titles = new Map();
  for (const run of found.runs) for (const chart of run.curves) {
    if (!titles.has(chart.title)) titles.set(chart.title, { ...chart, also: [] });
  }
  const last = Math.max(1, ...found.runs.map((one) => one.updates));
  const shown = [...titles.values()].filter((chart) => `${chart.title} ${chart.part}`.toLowerCase().includes(wanted));
  const parts = new Map();
  for (const chart of shown) {
    if (!parts.has(chart.part)) parts.set(chart.part, []);
    parts.get(chart.part).push(chart);
  }
  fill(place, [...parts].map(([part, charts], i) => {
    const box = element("div.charts");
    for (const chart of charts) {
      const later = element("div.later");
      box.appendChild(later);
      board.lazily(later, () => later.replaceWith(drawChart({ ...chart, series: linesOf(chart.title, found, groups, state) }, last)));
    }
    return element("details.part", { open: i === 0 || Boolean(wanted) }, element("summary", {}, part, element("small", {}, ` ${charts.length}`)), box);
  }));
}

function linesOf(title, found, groups, state) {
  const lineOf = (run) => (run.curves.find((chart) => chart.title === title) || {}).line;
  if (!state.bands) {
    return found.runs.map((run, i) => ({ run, i, line: lineOf(run) })).filter((one) => one.line)
      .map(({ run, i, line }) => ({ ...line, name: run.name, style: `c${i % COLOURS}` }));
  }
  return groups.map((some, i) => bandOf(some.map(lineOf).filter(Boolean), nameOf(some), `c${i % COLOURS}`)).filter(Boolean);
}

// The mean over seeds, with the range from the lowest to the highest
function bandOf(lines, name, style) {
  if (!lines.length) return null;
  if (lines.length === 1) return { ...lines[0], name, style };
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const columns = x.map((update) => lines.map((line) => valueAt(line, update)).filter((value) => value !== null));
  const each = (make) => columns.map((values) => (values.length ? make(values) : null));
  return { name, style, x, y: each((values) => values.reduce((sum, value) => sum + value, 0) / values.length),
    low: each((values) => Math.min(...values)), high: each((values) => Math.max(...values)) };
}

// The value at an update, between its neighbours where curves were thinned out differently
function valueAt(line, update) {
  const after = line.x.findIndex((at) => at >= update);
  if (after < 0) return null;
  if (line.x[after] === update) return line.y[after];
  if (after === 0 || line.y[after] === null || line.y[after - 1] === null) return null;
  const share = (update - line.x[after - 1]) / (line.x[after] - line.x[after - 1]);
  return line.y[after - 1] + share * (line.y[after] - line.y[after - 1]);
}

function differencesTable(found) {
  if (!found.differences.length) return element("p", {}, "All options are the same.");
  const all = found.differences.filter((row) => !row.values.includes(null));
  const some = found.differences.filter((row) => row.values.includes(null));
  return [all.length ? optionTable(found, all) : element("p", {}, "The options that all of them have are the same."),
    some.length ? details(`${plural(some.length, "option")} that only some of the runs have`, optionTable(found, some)) : null];
}

function optionTable(found, rows) {
  return element("div.wide", {}, element("table.differences", {},
    element("thead", {}, element("tr", {}, element("th", {}, "option"), found.runs.map((one) => element("th", {}, one.name)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, element("th", { scope: "row" }, row.option),
      row.values.map((value) => element("td", {}, element("code", {}, value === null ? "–" : value))))))));
}

function samePrompts(found) {
  if (!found.prompts.length) return element("p.soft", {}, "These runs were not validated with the same prompts.");
  const stage = element("div.columns");
  const show = async (index) => {
    const walks = await Promise.all(found.runs.map((run) => board.get("walk", { run: run.id, prompt: index })));
    const updates = [...new Set(walks.flatMap((walk) => walk.updates.map((one) => one.update)))].sort((a, b) => a - b);
    if (!updates.length) { fill(stage, element("p.soft", {}, "Nothing of this prompt was kept.")); return; }
    const said = element("output", {});
    const columns = found.runs.map(() => element("div.side"));
    const draw = (at) => {
      said.textContent = title(updates[at]);
      slider.setAttribute("aria-valuetext", said.textContent);
      found.runs.forEach((run, i) => {
        const past = walks[i].updates.filter((one) => one.update <= updates[at]).pop();
        if (past) samples(columns[i], past, walks[i], { id: run.id, state: {} }, `${run.name}, ${title(past.update)}`);
        else fill(columns[i], element("h4", {}, run.name), element("p.soft", {}, "nothing kept"));
      });
    };
    const slider = element("input", { type: "range", min: 0, max: updates.length - 1, value: updates.length - 1, "aria-label": "policy updates",
      oninput: () => draw(Number(slider.value)) });
    fill(stage, element("div.tools.walk", {}, slider, said), element("div.beside", {}, columns));
    draw(updates.length - 1);
  };
  const picker = choice("prompt", found.prompts.map((one) => [one.index, `${one.index + 1}. ${one.prompt}`.slice(0, 120)]), found.prompts[0].index, show);
  show(found.prompts[0].index).catch((error) => board.say(error.message));
  return element("div", {}, element("div.tools", {}, picker), stage);
}
