"use strict";
// All curves of a run, by section; those of validations also by data source.

const DETAIL = 400; // points of a curve that the board sends: of more updates, those in view are asked for

board.views.curves = async function (place, context) {
  const curves = await context.curves();
  const state = context.state;
  const many = curves.charts.some((chart) => chart.sources);
  const found = element("div");
  let closer = new Map(), asked = 0;
  const search = element("input", { type: "search", placeholder: "find a metric", value: state.find || "", "aria-label": "find a metric",
    oninput: () => { state.find = search.value; draw(); } });
  const ends = endsOf(curves);
  const zoomed = async () => {
    context.remember();
    const mine = ++asked, view = look.get();
    closer = new Map();
    if (board.frozen || curves.last <= DETAIL || view.from === 0 && view.to === view.last) return;
    const [from, to] = updatesIn(view, curves.axes);
    const now = await board.get("curves", { run: context.id, from, to });
    if (mine !== asked) return;
    closer = new Map(now.charts.map((chart) => [chart.title, chart]));
    look.paint();
  };
  const look = chartView(state, ends, () => zoomed().catch((error) => board.say(error.message)));
  const make = (chart, view) => {
    const shown = bySource(closer.get(chart.title) || chart, state);
    return { ...shown, series: shown.series.map((line) => along(line, curves.axes, view)) };
  };
  const wanted = () => {
    const words = (state.find || "").toLowerCase().split(/\s+/).filter(Boolean);
    return curves.charts.filter((chart) => words.every((word) => `${chart.title} ${chart.note} ${chart.also.join(" ")} ${chart.part}`.toLowerCase().includes(word)));
  };
  const draw = () => {
    context.remember();
    look.painters.clear();
    const shown = wanted();
    fill(found, sections(shown, look, make, (part, i) => i < 3 && part !== "Watched statistics" || Boolean(state.find)));
    if (!shown.length) append(found, [element("p.soft", {}, "No metric has these words.")]);
    const same = Object.entries(curves.constant);
    if (same.length && !state.find) {
      append(found, [details("The same at every update", element("p.soft", {}, same.map(([name, value]) => `${name} = ${exact(value)}`).join(", ")))]);
    }
  };
  fill(place, element("div.tools", {}, search, many && chips("curves by", [["component", "by component"], ["source", "by data source"]],
    state.by || "component", (by) => { state.by = by; draw(); }),
  download(`${context.data.row.name}-curves`, () => chartTable(wanted().map((chart) => make(chart, look.get())), look.get().name))), look.tools, found);
  draw();
  if (state.from || state.to) zoomed().catch((error) => board.say(error.message));
};

// The last update of a run, and the samples and seconds that it took
function endsOf(curves) {
  const last = (values) => (values && values.length ? values[values.length - 1] : 0);
  return { update: curves.last, samples: last(curves.axes.samples), seconds: last(curves.axes.seconds) };
}

// The updates that lie in a view
function updatesIn(view, axes) {
  const back = (place) => (view.axis === "update" ? place : valueAt({ x: axes[view.axis], y: axes.update }, place * view.unit));
  return [Math.floor(back(view.from) ?? 0), Math.ceil(back(view.to) ?? axes.update[axes.update.length - 1])];
}

// Charts by their part of a page; those of a part that is closed are drawn when it is opened
function sections(charts, look, make, open) {
  const parts = new Map();
  for (const chart of charts) parts.set(chart.part, [...(parts.get(chart.part) || []), chart]);
  return [...parts].map(([part, own], i) => element("details.part", { open: open(part, i) }, element("summary", {}, part, element("small", {}, ` ${own.length}`)),
    element("div.charts.small", {}, own.map((chart) => chartBox(look, (view) => make(chart, view))))));
}

function bySource(chart, state) {
  if (state.by !== "source" || !chart.sources) return chart;
  return { ...chart, series: chart.sources.map((line, i) => ({ ...line, style: `c${i % COLOURS}` })) };
}
