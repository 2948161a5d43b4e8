"use strict";
// One conversation, token by token. Text is only ever set as text: what a model wrote stays inert.
(() => {
  const BLOCK = 1500;  // tokens drawn at one time, when they come into sight
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const words = new Map();  // element id of a vocabulary -> Map of token -> bytes
  const wordsOf = (id) => {
    if (!words.has(id)) {
      const found = JSON.parse(document.getElementById(id).textContent);
      words.set(id, new Map(Object.entries(found).map(([key, text]) => [Number(key), bytes(text)])));
    }
    return words.get(id);
  };
  const unpacked = async (element) => {
    const stream = new Blob([bytes(element.textContent.trim())]).stream()
      .pipeThrough(new DecompressionStream("gzip"));
    const found = JSON.parse(await new Response(stream).text());
    const array = (name, kind) => found[name] ? new kind(bytes(found[name]).buffer) : null;
    found.tokens = array("tokens", Int32Array);
    found.engine = array("rollout_logprobs", Float32Array);
    found.trainer = array("trainer_logprobs", Float32Array);
    found.versions = array("weight_versions", Int32Array);
    return found;
  };
  // What each token adds to the text: a letter of several tokens comes with its last.
  const texts = (tokens, vocabulary) => {
    const decoder = new TextDecoder("utf-8");
    const found = Array.from(tokens, (token) => {
      const known = vocabulary.get(token);
      return known ? decoder.decode(known, { stream: true }) : `<${token}>`;
    });
    return found;
  };
  // Controls are shown, so that nothing is hidden and nothing acts.
  const shown = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g,
    (letter) => `␛${letter.charCodeAt(0).toString(16)} `);
  const number = (value) => value === null ? "–"
    : Number.isFinite(value) ? String(+value.toPrecision(4)) : String(value);
  const mixed = (colour, share) =>
    `color-mix(in oklab, var(${colour}) ${(100 * Math.max(0, Math.min(0.75, share))).toFixed(0)}%, transparent)`;

  window.glm52Conversation = async (home, side, id, turn) => {
    const element = document.getElementById(`${side.prefix}${id}`);
    if (!element) {
      const step = Number(id.split("-")[0]);
      const said = document.createElement("p");
      said.className = "nothing";
      said.textContent = `Sample ${id} is not in this page. Write one that has it: `
        + `glm52 report RUN --step ${step}; or read it with glm52 samples RUN ${id}`;
      home.replaceChildren(said);
      return;
    }
    const found = await unpacked(element);
    const text = texts(found.tokens, wordsOf(side.vocabulary));
    const own = new Uint8Array(found.tokens.length);
    found.turns.forEach(([start, end]) => own.fill(1, start, end));
    const drift = (at) => found.trainer ? found.trainer[at] - found.engine[at] : NaN;
    const newest = found.versions.reduce((most, one) => Math.max(most, one), 0);
    const colours = {
      drift: (at) => mixed(drift(at) < 0 ? "--cut" : "--c1", Math.abs(drift(at)) / 2),
      advantage: () => mixed(found.advantage < 0 ? "--cut" : "--c3", Math.abs(found.advantage) / 2),
      version: (at) => mixed("--c6", 0.1 + (newest - found.versions[at]) / 8),
      plain: () => "",
    };
    const by = document.createElement("select");
    by.setAttribute("aria-label", "Colour of tokens");
    for (const [key, name] of Object.entries({
      drift: "D = trainer − engine log-prob", advantage: "advantage",
      version: "age of the weights", plain: "no colour",
    })) {
      if (key !== "drift" || found.trainer) by.append(new Option(name, key));
    }
    const readout = document.createElement("output");
    readout.className = "readout";
    const next = document.createElement("button");
    next.type = "button";
    next.textContent = "next token with |D| > 1";
    const bar = document.createElement("div");
    bar.className = "bar";
    const title = document.createElement("h3");
    title.textContent = `${found.task_id} · ${id} · reward ${number(found.reward)} · advantage `
      + `${number(found.advantage)} · ${found.end_reason}${found.truncated ? ", cut" : ""} · `
      + `${found.tokens.length} tokens`;
    bar.append(by, " ", ...(found.trainer ? [next, " "] : []), readout);
    const body = document.createElement("pre");
    body.className = "tokens";
    body.tabIndex = 0;

    const blocks = [];  // {element, start, end}
    const fill = (block) => {
      if (block.done) return;
      block.done = true;
      const spans = [];
      for (let at = block.start; at < block.end; at += 1) {
        const span = document.createElement("span");
        span.textContent = shown(text[at]);
        if (own[at]) {
          span.className = "own";
          span.dataset.at = at;
          span.style.background = colours[by.value](at);
        }
        spans.push(span);
      }
      block.element.replaceChildren(...spans);
    };
    const parts = [];
    let before = 0;
    found.turns.forEach(([start, end], place) => {
      parts.push([before, start, place ? "Output" : "Prompt"], [start, end, `Turn ${place + 1}`]);
      before = end;
    });
    parts.push([before, found.tokens.length, found.turns.length ? "Output" : "Prompt"]);
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) fill(entry.target.block);
    }, { root: body, rootMargin: "600px" });
    const heads = {};
    for (const [start, end, name] of parts) {
      if (start === end) continue;
      const head = document.createElement("h4");
      head.textContent = `${name}, ${end - start} tokens`;
      heads[name] = head;
      body.append(head);
      for (let from = start; from < end; from += BLOCK) {
        const part = document.createElement("div");
        const block = { element: part, start: from, end: Math.min(end, from + BLOCK) };
        part.block = block;
        part.className = name.startsWith("Turn") ? "said" : "read";
        part.style.containIntrinsicSize = `auto ${Math.ceil((block.end - from) / 18) * 19}px`;
        part.textContent = shown(text.slice(from, block.end).join(""));
        blocks.push(block);
        body.append(part);
        seen.observe(part);
      }
    }
    by.addEventListener("change", () => {
      for (const span of body.querySelectorAll(".own")) {
        span.style.background = colours[by.value](Number(span.dataset.at));
      }
    });
    const tell = (at) => {
      readout.textContent = `token ${at}, id ${found.tokens[at]}: trainer `
        + `${found.trainer ? number(found.trainer[at]) : "–"}, engine ${number(found.engine[at])}, `
        + `D ${number(drift(at))}, weights of version ${found.versions[at]}`;
    };
    body.addEventListener("pointerover", (event) => {
      if (event.target.dataset.at) tell(Number(event.target.dataset.at));
    });
    let last = -1;
    const go = (at) => {
      const block = blocks.find((one) => at >= one.start && at < one.end);
      fill(block);
      const span = block.element.children[at - block.start];
      body.querySelector(".here")?.classList.remove("here");
      span.classList.add("here");
      span.scrollIntoView({ block: "center" });
      tell(at);
    };
    next.addEventListener("click", () => {
      const large = (at) => own[at] && Math.abs(drift(at)) > 1;
      let at = last + 1;
      while (at < text.length && !large(at)) at += 1;
      if (at === text.length) {
        readout.textContent = last < 0 ? "no token has |D| > 1" : "no further one";
        last = -1;
        return;
      }
      last = at;
      go(at);
    });
    home.replaceChildren(title, bar, body);
    home.dataset.sample = id;
    if (turn !== null && heads[`Turn ${turn + 1}`]) heads[`Turn ${turn + 1}`].scrollIntoView({ block: "nearest" });
  };
})();
