"use strict";
// The samples of one prompt, walked through the updates: the same prompt and the same noise.

board.views.gallery = async function (place, context) {
  const state = context.state;
  const prompts = await context.prompts();
  const known = new Map(prompts.prompts.map((one) => [one.index, one]));
  const kept = prompts.kept;
  if (!kept.length) { fill(place, element("p", {}, `No validation has kept ${context.data.samples} yet.`)); return; }
  if (!kept.includes(Number(state.prompt))) state.prompt = kept[0];
  const stage = element("div.stage");
  const label = (index) => `${index + 1}. ${(known.get(index) || {}).prompt || "prompt"}`.slice(0, 120);
  const step = (by) => { state.prompt = kept[(kept.indexOf(Number(state.prompt)) + by + kept.length) % kept.length]; select(); };
  const picker = choice("prompt", kept.map((index) => [index, label(index)]), state.prompt, (value) => { state.prompt = Number(value); select(); });
  const select = async () => {
    picker.querySelector("select").value = state.prompt;
    context.remember();
    const walk = await board.get("walk", { run: context.id, prompt: state.prompt });
    if (walk.updates.length) walkThrough(stage, walk, context);
    else fill(stage, element("p.soft", {}, "Nothing of this prompt was kept."));
  };
  fill(place,
    element("p.soft", {}, `${context.data.chosen} ${context.data.same}`),
    element("div.tools", {}, element("button", { type: "button", onclick: () => step(-1), "aria-label": "previous prompt" }, "‹"), picker,
      element("button", { type: "button", onclick: () => step(1), "aria-label": "next prompt" }, "›")), stage);
  context.keys = { j: () => step(1), k: () => step(-1) };
  await select();
};

function walkThrough(stage, walk, context) {
  const state = context.state, updates = walk.updates, most = updates.length - 1;
  let at = state.update === undefined || state.update === "last" ? most
    : Math.max(0, updates.findIndex((one) => one.update === Number(state.update)));
  let playing = null;
  const now = element("div.side"), first = element("div.side");
  const said = element("output", {});
  const slider = element("input", { type: "range", min: 0, max: most, value: at, "aria-label": "policy updates", oninput: () => show(Number(slider.value)) });
  const play = element("button", { type: "button", onclick: () => (playing ? stop() : start()) }, "play");
  const stop = () => { clearInterval(playing); playing = null; play.textContent = "play"; };
  const start = () => {
    play.textContent = "stop";
    if (at === most) show(0);
    playing = setInterval(() => { if (!stage.isConnected || at >= most) stop(); else show(at + 1); }, 700);
  };
  const show = (place) => {
    at = place;
    slider.value = at;
    const one = updates[at];
    state.update = at === most ? "last" : one.update;
    said.textContent = title(one.update);
    slider.setAttribute("aria-valuetext", said.textContent);
    samples(now, one, walk, context, title(one.update));
    for (const next of [updates[at + 1], updates[at - 1]]) preload(next, context);
    context.remember();
  };
  const beside = () => {
    const both = state.beside !== false && most > 0;
    first.hidden = !both;
    stage.classList.toggle("both", both);
    if (both) samples(first, updates[0], walk, context, title(updates[0].update));
  };
  const scored = walk.written && updates.some((one) => one.samples.some((sample) => sample.tokens && sample.tokens.length));
  const certain = scored && updates.some((one) => one.samples.some((sample) => (sample.tokens || []).some((token) => token[2] !== null)));
  const by = [["", "text"], ["logprob", "log-probs"], ...(certain ? [["entropy", "entropy"]] : [])];
  fill(stage,
    element("div.asked", {}, (walk.shown || []).map((file) => board.media(context.id, file, `what the prompt shows: ${file.split("/").pop()}`)),
      element("div", {}, element("h3.prompt", {}, words(walk.prompt, 600)),
        walk.written && walk.answer !== null ? element("p.soft", {}, "right answer: ", words(walk.answer, 300)) : null,
        !walk.written && (walk.shown || []).length ? element("p.soft", {}, "is what the samples begin from") : null)),
    element("div.tools.walk", {}, slider, said, most > 0 && play,
      most > 0 && toggle("beside the first", state.beside !== false, (on) => { state.beside = on; beside(); }),
      scored && chips("show tokens by", by, state.tokens || "", (value) => { state.tokens = value; show(at); beside(); })),
    element("div.between", {}, first, now));
  beside();
  show(at);
}

function title(update) {
  return update ? `after ${plural(update, "update")}` : "before training";
}

function samples(place, one, walk, context, heading) {
  const shown = one.samples.slice(0, 64);
  const mean = shown.filter((sample) => sample.reward !== null);
  const label = (sample) => `${(walk.prompt || "").slice(0, 200)}, ${heading}, sample ${sample.sample + 1}`;
  fill(place, element("h4", {}, heading, mean.length ? ` · mean reward ${number(mean.reduce((sum, sample) => sum + sample.reward, 0) / mean.length)}` : ""),
    element(walk.written ? "div.responses" : "div.images", {},
      shown.map((sample) => board.sample(context.id, sample, label(sample), { tokens: context.state.tokens }))));
}

function preload(one, context) {
  if (!one || board.frozen) return;
  for (const sample of one.samples.slice(0, 16)) {
    if (sample.file && sample.file.endsWith(".png")) new Image().src = board.address(context.id, sample.file, 384);
  }
}
