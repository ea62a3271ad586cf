"use strict";
// The groups of an update: all samples of a prompt, with their rewards and advantages.

board.views.groups = async function (place, context) {
  const state = context.state;
  const found = await board.get("groups", { run: context.id, update: state.update === undefined || state.update === "last" ? null : state.update });
  if (!found.updates.length) {
    fill(place, element("p", {}, "No groups are recorded: this run learns from given samples, or has made no update yet."));
    return;
  }
  const most = found.updates.length - 1;
  const media = !board.frozen || found.groups.some((group) => group.samples.some((one) => one.response !== undefined));
  const at = Math.max(0, found.updates.indexOf(found.update));
  const said = element("output", {}, `update ${found.update}`);
  const slider = element("input", { type: "range", min: 0, max: most, value: at, "aria-label": "policy update",
    oninput: () => { said.textContent = `update ${found.updates[slider.value]}`; },
    onchange: () => {
      state.update = Number(slider.value) === most ? "last" : found.updates[slider.value];
      context.remember();
      board.views.groups(place, context);
    } });
  const kept = found.groups.some((group) => group.samples.some((one) => one.file || one.response !== undefined));
  const credited = found.groups.some((group) => group.samples.some((one) => one.advantage !== null));
  fill(place,
    element("div.tools.walk", {}, slider, said,
      chips("order", [["reward", "by reward"], ["sample", "as drawn"]], state.order || "reward", (order) => { state.order = order; draw(); })),
    kept || !media ? null : element("p.soft", {}, found.kept.length && !board.frozen
      ? `Rewards only; samples were kept of ${found.kept.length > 1 ? "updates" : "update"} ${found.kept.slice(-20).join(", ")}.`
      : "Rewards only: training samples are kept as files where rollout.save is set."),
    credited ? null : element("p.soft", {}, "This algorithm has no advantage of a single sample."));
  const body = element("div");
  const draw = () => fill(body, found.groups.map((group) => groupCard(group, context)));
  place.appendChild(body);
  draw();
};

function groupCard(group, context) {
  const rows = [...group.samples];
  if (context.state.order !== "sample") rows.sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.sample - b.sample);
  const known = rows.filter((one) => one.reward !== null).map((one) => one.reward);
  const mean = known.reduce((sum, value) => sum + value, 0) / Math.max(known.length, 1);
  const alike = known.length > 1 && known.every((value) => value === known[0]);
  const largest = Math.max(1e-9, ...rows.map((one) => Math.abs(one.advantage ?? 0)));
  return element("section.card", {}, element("h3.prompt", {}, words(group.prompt, 400)),
    element("p.soft", {}, `${plural(rows.length, "sample")}, mean reward ${known.length ? number(mean) : "missing"}`, alike ? " · all alike: nothing to learn from" : "",
      group.source !== "default" ? ` · ${group.source}` : ""),
    element("div.group", {}, rows.map((one) => element("div.member", {},
      one.file || one.response !== undefined ? board.sample(context.id, one, `sample ${one.sample + 1}`, { tokens: "logprob" })
        : element("p.score", {}, element("span", {}, one.reward === null ? "missing" : number(one.reward, 3))),
      bar(one.advantage, largest)))));
}

function bar(advantage, largest) {
  if (advantage === null || advantage === undefined) return null;
  const width = 48 * Math.abs(advantage) / largest;
  return element("div.advantage", { title: `advantage ${number(advantage)}` },
    element("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      element("path.rule", { d: "M50 0V8" }),
      element(`rect.${advantage < 0 ? "bad" : "good"}`, { x: advantage < 0 ? 50 - width : 50, y: 1, width, height: 6 })),
    element("span", {}, signed(advantage, 2)));
}
