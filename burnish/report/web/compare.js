"use strict";
// Runs beside each other: curves with seeds or values of an option as bands, options in which they differ, the same
// prompts' samples.

board.views.compare = async function (place, state, names) {
  const found = await board.get("compare", { run: names });
  const remember = () => board.keep("compare", names.map((name) => ["run", name]), state);
  const seeds = bandsOf(found, "seed").length < found.runs.length;
  const ways = [["run", "none"], ...(seeds ? [["seed", "seeds"]] : []),
    ...found.differences.filter((row) => !["seed", ...NO_CHOICE].includes(row.option) && new Set(row.values).size < found.runs.length).map((row) => [row.option, row.option])];
  if (!ways.some(([way]) => way === state.bands)) state.bands = seeds ? "seed" : "run";
  const each = found.runs.map((run) => endsOf({ last: run.updates, axes: run.axes }));
  const ends = Object.fromEntries(AXES.map(([name]) => [name, Math.max(...each.map((one) => one[name]))]));
  const look = chartView(state, ends, remember);
  const body = element("div"), keys = element("div");
  const search = element("input", { type: "search", placeholder: "find a metric", value: state.find || "", "aria-label": "find a metric", oninput: () => { state.find = search.value; draw(); } });
  const wanted = () => {
    const titles = new Map();
    for (const run of found.runs) for (const chart of run.curves) if (!titles.has(chart.title)) titles.set(chart.title, { ...chart, also: [] });
    return [...titles.values()].filter((chart) => `${chart.title} ${chart.part}`.toLowerCase().includes((state.find || "").toLowerCase()));
  };
  const make = (chart, view) => ({ ...chart, series: linesOf(chart.title, bandsOf(found, state.bands), view) });
  const draw = () => {
    remember();
    look.painters.clear();
    fill(keys, runLegend(bandsOf(found, state.bands)));
    fill(body, sections(wanted(), look, make, (_, i) => i === 0 || Boolean(state.find)));
  };
  fill(place,
    element("p.crumbs", {}, element("a", { href: "#/" }, "all runs")),
    element("h1", {}, `${plural(found.runs.length, "run")} beside each other`),
    keys,
    found.rewards ? element("div.warning", {}, element("p", {}, found.rewards)) : null,
    element("div.tools", {}, search, ways.length > 1 && choice("bands over", ways, state.bands, (way) => { state.bands = way; draw(); }),
      download("compared-curves", () => chartTable(wanted().map((chart) => make(chart, look.get())), look.get().name))),
    look.tools, body,
    element("h2", {}, "Differences of the configurations"), differencesTable(found),
    element("h2", {}, "The same prompts"), samePrompts(found));
  draw();
};

// Runs that are one line of a chart, with its name: each by itself, those that differ in their seed alone, or all of a
// value of an option
function bandsOf(found, way) {
  const bands = new Map(), rows = found.differences.filter((row) => way === "seed" ? !["seed", ...NO_CHOICE].includes(row.option) : row.option === way);
  found.runs.forEach((run, i) => {
    const key = way === "run" ? run.id : JSON.stringify(rows.map((row) => row.values[i]));
    if (!bands.has(key)) bands.set(key, { name: rows.length === 1 && way !== "seed" ? `${way} ${rows[0].values[i] ?? "–"}` : "", runs: [] });
    bands.get(key).runs.push(run);
  });
  return [...bands.values()].map(({ name, runs }, i) => ({ name: name || nameOf(runs), runs, style: `c${i % COLOURS}` }));
}

function nameOf(some) {
  return some.length > 1 ? `${some[0].name} and ${some.length - 1} more ${some.length > 2 ? "seeds" : "seed"}` : some[0].name;
}

function runLegend(bands) {
  return element("ul.legend.runs-legend", {}, bands.map(({ name, runs, style }) => element("li", {},
    element("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, element(`path.line.${style}`, { d: "M1 4H21" })),
    runs.length > 1 ? element("span", {}, name, element("small", {}, ` ${plural(runs.length, "run")}`)) : element("a", { href: runHash(runs[0].id) }, name))));
}

function linesOf(title, bands, view) {
  const lineOf = (run) => {
    const { line } = run.curves.find((chart) => chart.title === title) || {};
    return line && along(line, run.axes, view);
  };
  return bands.map(({ name, runs, style }) => bandOf(runs.map(lineOf).filter(Boolean), name, style)).filter(Boolean);
}

// The mean over runs, with the range from the lowest to the highest
function bandOf(lines, name, style) {
  if (!lines.length) return null;
  if (lines.length === 1) return { ...lines[0], name, style };
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const columns = x.map((update) => lines.map((line) => valueAt(line, update)).filter((value) => value !== null));
  const each = (make) => columns.map((values) => (values.length ? make(values) : null));
  return { name, style, x, y: each((values) => spread(values).mean), low: each((values) => Math.min(...values)), high: each((values) => Math.max(...values)) };
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
