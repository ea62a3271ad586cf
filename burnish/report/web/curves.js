"use strict";
// All curves of a run, by section; those of validations also by data source.

board.views.curves = async function (place, context) {
  const curves = await context.curves();
  const state = context.state;
  const many = curves.charts.some((chart) => chart.sources);
  const found = element("div");
  const search = element("input", { type: "search", placeholder: "find a metric", value: state.find || "", "aria-label": "find a metric",
    oninput: () => { state.find = search.value; draw(); } });
  const draw = () => {
    const wanted = (state.find || "").toLowerCase().split(/\s+/).filter(Boolean);
    const parts = new Map();
    for (const chart of curves.charts) {
      const text = `${chart.title} ${chart.note} ${chart.also.join(" ")} ${chart.part}`.toLowerCase();
      if (!wanted.every((word) => text.includes(word))) continue;
      if (!parts.has(chart.part)) parts.set(chart.part, []);
      parts.get(chart.part).push(chart);
    }
    fill(found, [...parts].map(([part, charts], i) => section(part, charts, curves.last, state, i < 3 && part !== "Watched statistics" || wanted.length > 0)));
    if (!parts.size) append(found, [element("p.soft", {}, "No metric has these words.")]);
    const same = Object.entries(curves.constant);
    if (same.length && !wanted.length) {
      append(found, [details("The same at every update", element("p.soft", {}, same.map(([name, value]) => `${name} = ${number(value)}`).join(", ")))]);
    }
  };
  fill(place, element("div.tools", {}, search, many && chips("curves by", [["component", "by component"], ["source", "by data source"]],
    state.by || "component", (by) => { state.by = by; draw(); })), found);
  draw();
};

function section(part, charts, last, state, open) {
  const place = element("div.charts.small");
  for (const chart of charts) {
    const box = element("div.later");
    place.appendChild(box);
    board.lazily(box, () => box.replaceWith(drawChart(bySource(chart, state), last)));
  }
  return element("details.part", { open }, element("summary", {}, part, element("small", {}, ` ${charts.length}`)), place);
}

function bySource(chart, state) {
  if (state.by !== "source" || !chart.sources) return chart;
  return { ...chart, series: chart.sources.map((line, i) => ({ ...line, style: `c${i % COLOURS}` })) };
}
