"use strict";
// What a run came to: numbers, sentences, warnings, and the curves of what it was measured by.

board.views.overview = async function (place, context) {
  const run = context.data;
  fill(place,
    run.row.notes ? element("p.notes", {}, words(run.row.notes)) : null,
    run.headline ? element("p.headline", {}, run.headline) : null,
    run.warnings.length ? element("div.warning", {}, run.warnings.map((text) => element("p", {}, text))) : null,
    element("div.first", {}, glimpse(context),
      run.verdict.length ? element("ul.verdict", {}, run.verdict.map((one) => element("li", {},
        element(one.kind ? `b.${one.kind}` : "b", {}, one.word), element("span", {}, one.text)))) : null),
    run.numbers.why ? element("p", {}, run.numbers.why) : table(run.numbers, "numbers"),
    context.measures = element("div.charts"),
    run.numbers.moved ? details(run.numbers.moved, table({ ...run.numbers, rows: run.numbers.watched }, "numbers"), context.watched = element("div.charts")) : null,
    run.sources ? [element("h2", {}, "By data source"),
      element("p", {}, "The numbers above are means over these, each counted alike."), table(run.sources, "sources")] : null,
    suiteTables(run),
    run.alarms.length ? [element("h2", {}, "Alarms"), element("p", {}, run.alarms_about),
      run.alarms.map((one) => alarm(context, one))] : null,
    element("h2", {}, "Next steps"),
    element("pre", {}, run.next.map((one) => `${one.command}    # ${one.what}`).join("\n")));
  const curves = await context.curves();
  const of = (part) => curves.charts.filter((chart) => chart.part === part);
  const shown = of("Validation");
  const look = plainView(curves.last), box = (chart) => chartBox(look, () => chart);
  fill(context.measures, shown.map(box));
  if (context.watched) fill(context.watched, of("Watched statistics").map(box));
  if (shown.some((chart) => chart.series.some((line) => line.low))) {
    context.measures.after(element("p.soft", {}, "Bands: 95 % interval over prompts."));
  }
};

// the first sample of the first prompts, before and after
function glimpse(context) {
  const run = context.data;
  if (!run.glimpse.length) return null;
  const pair = (one) => element("section.card", {},
    element("div.asked", {}, one.shown.map((file) => board.media(context.id, file, `what the prompt shows: ${file.split("/").pop()}`)),
      element("div", {}, element("h3", {}, words(one.prompt, one.written ? 240 : 90)), one.written && one.answer !== null ? element("p.soft", {}, "right answer: ", words(one.answer, 80)) : null)),
    element("div.sides", {}, one.sides.map((side) => element("div", {}, element("h4", {}, side.title),
      board.sample(context.id, side, `${one.prompt.slice(0, 200)}, ${side.title}`, { limit: 240 })))));
  return element("div.glimpse", {}, run.glimpse.map(pair),
    element("p.soft", {}, `${run.chosen} ${run.same} `, element("button.link", { type: "button", onclick: () => context.go("gallery", {}) }, "All of them are in the gallery.")));
}

function alarm(context, one) {
  return element(one.over ? "section.card.past" : "section.card", {}, element("h3", {}, one.name),
    one.texts.map((text) => element("p", {}, text)),
    one.sheets.length ? element("div.sides", {}, one.sheets.map((sheet) => element("div", {}, element("h4", {}, sheet.title),
      board.media(context.id, sheet.file, `${one.name}, ${sheet.title}`, 768)))) : null,
    one.quotes.length ? element("div.sides", {}, one.quotes.map((some) => element("div", {}, element("h4", {}, some.title),
      element("dl.quotes", {}, some.said.map((quote) => [
        element("dt", {}, quote.prompt, element("small", {}, quote.reward === null ? "no reward" : `reward ${number(quote.reward)}`)),
        element("dd", {}, quote.response.trim() ? quote.response : element("i", {}, "nothing"))]))))) : null);
}

function table(found, kind) {
  return element("div.wide", {}, element(`table.${kind}`, {},
    element("thead", {}, element("tr", {}, element("th"), found.heads.map((text) => element("th.n", {}, text)))),
    element("tbody", {}, found.rows.map((row) => element("tr", {},
      element("td", {}, row.title, row.note && element("small", {}, row.note)),
      row.cells.map((cell) => element(cell.kind ? `td.n.${cell.kind}` : "td.n", {}, cell.text, cell.note && element("small", {}, cell.note))))))));
}

function suiteTables(found) {
  if (!found.suites.length) return null;
  return [element("h2", {}, "Suites"), element("p", {}, found.suites_about), found.suites.map((one) => element("section.card.suites", {},
    element("h3", {}, one.name), element("p.soft", {}, one.note),
    one.doubts.length ? element("div.warning", {}, one.doubts.map((text) => element("p", {}, text))) : null,
    table(one, "sources.suite"),
    one.series ? element("div.charts", {}, chartBox(plainView(found.updates), () => ({ title: `${one.name}, overall`, series: [one.series], also: [] }))) : null))];
}
