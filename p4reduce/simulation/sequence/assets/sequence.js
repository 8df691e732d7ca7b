// Draws a run as a sequence diagram, plays it step by step, and shows slots, workers and headers at the current one.
"use strict";
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const at = (id) => document.getElementById(id);
  const KINDS = {
    data: "a worker's contribution", sum: "the sum, from a switch", pass: "PASS, forwarded as it is", ack: "acknowledgement",
    nak: "NAK", partial: "PARTIAL or ASK, between switches", result: "RESULT, between switches", broken: "its checksum is wrong",
  };
  const STRIKES = { loss: "lost", duplicate: "a copy", stale: "an old copy", reorder: "late", corrupt: "bit error" };
  const PARTS = ["at", "brings", "holds", "sender", "writes", "sends"];
  const HEAD = 46, ROW = 16, FAR_NS = 400000, MARGIN = 700;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  const arrows = run.arrows.map(([from, to, sent, arrives, packet, strikes, late, again, lost], number) => {
    const [kind, label, layers] = run.packets[packet];
    return { number, from, to, sent, arrives, kind, label, layers, strikes, late, again, lost };
  });
  const steps = run.steps;
  const places = new Map(run.actors.map((actor, n) => [actor.name, n]));

  // Building blocks

  function node(tag, words = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(words)) {
      if (name === "onclick") made.addEventListener("click", value);
      else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return made;
  }

  function shape(tag, words = {}, text = null) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(words)) made.setAttribute(name, typeof value === "number" ? Math.round(value * 10) / 10 : value);
    if (text !== null) made.textContent = text;
    return made;
  }

  const ms = (ns, digits = 4) => (ns / 1e6).toFixed(digits);
  function span(ns) {
    if (ns < 1e3) return `${ns} ns`;
    if (ns < 1e6) return `${+(ns / 1e3).toPrecision(3)} µs`;
    return ns < 1e9 ? `${+(ns / 1e6).toPrecision(3)} ms` : `${+(ns / 1e9).toPrecision(3)} s`;
  }

  // Time to height: in order, each on a row of its own; what takes longer is further apart, but not by much.
  const rows = [];
  const gaps = [];
  let height = 0;
  (() => {
    const seen = new Map();
    const events = new Map();
    function row(t, order, key, lines) {
      const name = `${t}/${key}`;
      if (!events.has(name)) {
        events.set(name, { t, order, lines });
        rows.push(events.get(name));
      }
      return events.get(name);
    }
    function place(t, link) {
      const count = seen.get(`${t}/${link}`) || 0;
      seen.set(`${t}/${link}`, count + 1);
      return count;
    }
    const first = steps[0].t;
    steps.forEach((step, n) => {
      if (step.came !== undefined) {
        const arrow = arrows[step.came];
        arrow.end = row(step.t, n, `in ${step.where} ${place(step.t, `>${step.where}`)}`, 1);
        step.row = arrow.end;
        arrow.step = n;
      } else if (step.left === undefined) {
        step.row = row(step.t, n, `step ${n}`, step.said.length);
      }
      for (const number of step.left || []) {
        const arrow = arrows[number];
        const sent = Math.max(arrow.sent, step.t);
        arrow.start = row(sent, n, `out ${arrow.from} ${place(sent, `${arrow.from}>${arrow.to}`)}`, 1);
        if (step.row === undefined) step.row = arrow.start;
      }
    });
    const last = steps[steps.length - 1].t;
    for (const arrow of arrows) {
      if (arrow.start === undefined) arrow.start = { t: Math.min(arrow.sent, first), y: 0, fixed: true };
      if (arrow.end === undefined) {
        if (arrow.arrives <= last || arrow.lost) arrow.end = row(arrow.arrives, 1e9, `in ${arrow.to} ${place(arrow.arrives, `>${arrow.to}`)}`, 1);
        else arrow.end = { t: arrow.arrives, fixed: true };
      }
    }
    rows.sort((a, b) => a.t - b.t || a.order - b.order);
    let y = HEAD / 2, before = null;
    for (const each of rows) {
      if (before !== null) {
        const silent = each.t - before.t;
        if (silent > FAR_NS) {
          gaps.push({ y: y + ROW * before.lines + 12, ns: silent });
          y += ROW * before.lines + 26;
        } else {
          y += ROW * before.lines + 5 * Math.log2(1 + silent / 1500);
        }
      }
      each.y = y;
      before = each;
    }
    height = y + 60;
    for (const arrow of arrows) if (arrow.end.fixed) arrow.end.y = height + 20;
  })();
  const byHeight = arrows.filter((arrow) => places.has(arrow.from) && places.has(arrow.to));

  function heightAt(t) {
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle].t < t) low = middle + 1;
      else high = middle;
    }
    if (low === rows.length) return height;
    if (low === 0) return t < rows[0].t ? 0 : rows[0].y;
    const [a, b] = [rows[low - 1], rows[low]];
    return b.t === a.t ? b.y : a.y + ((b.y - a.y) * (t - a.t)) / (b.t - a.t);
  }

  // What slots and workers are after each step

  let known = { step: -2, values: new Map() };
  function stateAt(step) {
    if (known.step > step) known = { step: -2, values: new Map() };
    if (known.step === -2) {
      for (const [name, value] of Object.entries(run.base)) set(known.values, name, value);
      known.step = -1;
    }
    while (known.step < step) {
      known.step += 1;
      for (const [name, value] of Object.entries(steps[known.step].changes || {})) set(known.values, name, value);
    }
    return known.values;
  }
  function set(values, name, value) {
    if (value === null) values.delete(name);
    else values.set(name, value);
  }

  // The diagram

  const diagram = at("diagram"), heads = at("heads"), drawing = at("drawing"), layers = Object.fromEntries(["hand", "lines", "moving", "words"].map((name) => [name, at(name)]));
  const ranks = new Map();
  for (const step of [{ changes: run.base }, ...steps]) {
    for (const value of Object.values(step.changes || {})) {
      if (value && value.worker) ranks.set(value.host, (ranks.get(value.host) || new Map()).set(value.worker, value.rank));
    }
  }
  let width = 0, column = 0, drawn = null, GUTTER = 62, narrow = false;
  let current = 0, hand = 0, chosen = null, playing = false;

  const x = (name) => GUTTER + column * (places.get(name) + 0.5);
  const isSwitch = (name) => run.actors[places.get(name)].kind !== "host";

  function measure() {
    const room = diagram.clientWidth, count = run.actors.length;
    GUTTER = room < 600 ? 54 : 64;
    column = Math.min(240, Math.max(room < 600 ? 58 : 92, (room - GUTTER - 4) / count));
    narrow = column < 110;
    width = Math.max(room, GUTTER + column * count + 4);
    for (const [svg, tall] of [[heads, HEAD], [drawing, height]]) {
      svg.setAttribute("width", width);
      svg.setAttribute("height", tall);
    }
    heads.replaceChildren(shape("text", { x: GUTTER - 8, y: 28, class: "clock" }, "ms"));
    for (const actor of run.actors) {
      const group = shape("g", { class: `head ${isSwitch(actor.name) ? "switch" : "host"}` });
      const wide = Math.min(column - 8, 110), mine = ranks.get(actor.name);
      group.append(shape("rect", { x: x(actor.name) - wide / 2, y: 5, width: wide, height: HEAD - 11, rx: 7 }));
      group.append(shape("text", { x: x(actor.name), y: mine ? 21 : 28 }, actor.name));
      if (mine) group.append(shape("text", { x: x(actor.name), y: 35, class: "rank" }, `rank ${[...new Set(mine.values())].sort((a, b) => a - b).join(", ")}`));
      heads.append(group);
    }
    drawn = null;
  }

  function ends(arrow) {
    const [x1, x2] = [x(arrow.from), x(arrow.to)], side = Math.sign(x2 - x1) || 1;
    const inset = (name) => (isSwitch(name) ? 5 : 2);
    return { x1: x1 + side * inset(arrow.from), x2: x2 - side * inset(arrow.to), y1: arrow.start.y, y2: arrow.end.y };
  }

  // Where there are words already: a label looks for another place along its arrow.
  function emptyRoom() {
    const taken = [];
    return {
      take(cx, y, wide) {
        if (taken.some((box) => Math.abs(box.y - y) < 13 && Math.abs(box.cx - cx) < (box.wide + wide) / 2 + 2)) return false;
        taken.push({ cx, y, wide });
        return true;
      },
    };
  }

  function drawArrow(arrow, room) {
    const { x1, x2, y1, y2 } = ends(arrow), way = arrow.lost && !arrow.lost.includes("down") ? 0.55 : 1;
    const stop = { x: x1 + (x2 - x1) * way, y: y1 + (y2 - y1) * way };
    const names = ["arrow", arrow.kind === "broken" ? "data" : arrow.kind];
    if (arrow.strikes.length || arrow.lost || arrow.kind === "broken") names.push("struck");
    if (arrow.strikes.includes("duplicate") || arrow.strikes.includes("stale")) names.push("copy");
    if (arrow.again) names.push("again");
    if (arrow.start.y > steps[current].row.y + 1) names.push("later");
    if (chosen === arrow.number) names.push("chosen");
    const group = shape("g", { class: names.join(" "), "data-arrow": arrow.number });
    group.append(shape("line", { x1, y1, x2: stop.x, y2: stop.y, class: "hit" }), shape("line", { x1, y1, x2: stop.x, y2: stop.y }));
    const turn = Math.atan2(y2 - y1, x2 - x1);
    if (arrow.lost) {
      const r = 6;
      for (const side of [-1, 1]) group.append(shape("line", { x1: stop.x - r, y1: stop.y - r * side, x2: stop.x + r, y2: stop.y + r * side, class: "cross" }));
    } else {
      const tip = (angle) => `${(x2 - 9 * Math.cos(turn + angle)).toFixed(1)} ${(y2 - 9 * Math.sin(turn + angle)).toFixed(1)}`;
      group.append(shape("path", { d: `M${x2.toFixed(1)} ${y2.toFixed(1)}L${tip(0.42)}L${tip(-0.42)}Z` }));
    }
    const struck = arrow.strikes.filter((kind) => kind !== "loss").map((kind) => STRIKES[kind] + (kind === "reorder" || kind === "stale" ? ` ${span(arrow.late)}` : ""));
    if (arrow.lost) struck.push("lost");
    const label = narrow && !["ack", "nak", "rnr"].includes(arrow.kind) ? arrow.label.replace(/ (First|Middle|Last|Only)$/, "") : arrow.label;
    const words = [arrow.again ? "again" : "", label, ...struck.map((word) => `· ${word}`)].filter(Boolean).join(" ");
    const along = (share, over) => [x1 + (x2 - x1) * share, y1 + (y2 - y1) * share + over];
    const shares = arrow.lost ? [0.3, 0.2, 0.4] : isSwitch(arrow.from) ? [0.66, 0.78, 0.54, 0.42, 0.88] : [0.34, 0.22, 0.46, 0.58, 0.12];
    const wide = words.length * (narrow ? 5.6 : 6.1);
    const spots = [-4, 13].flatMap((over) => shares.map((share) => along(share, over)));
    const [tx, ty] = spots.find((spot) => room.take(...spot, wide)) ?? spots[0];
    const over = shape("g", { class: names.join(" "), "data-arrow": arrow.number });
    over.append(shape("text", { x: tx, y: ty }, words));
    return [group, over];
  }

  function drawMark(step, n, room) {
    if (step.came === undefined || !places.has(step.where)) return [];
    const [cx, cy] = [x(step.where), step.row.y], later = n > current ? " later" : "";
    const result = step.said.some((line) => line.includes("has the result"));
    const made = [shape("circle", { cx, cy, r: result ? 6 : 3.5, class: `dot${result ? " done" : ""}${later}` })];
    const word = step.mark || (result ? "has the result" : "");
    if (!word) return made;
    const kind = step.rule ? `r${step.rule[0]}${(step.left || []).some((a) => arrows[a].kind === "sum" || arrows[a].kind === "result") ? " sums" : ""}` : result ? "sums" : step.mark === "had it" ? "" : "bad";
    const wide = 12 + 6.4 * word.length;
    let side = x(arrows[step.came].from) < cx ? 1 : -1;
    if (side < 0 && cx - 8 - wide < GUTTER) side = 1;
    const left = Math.min(cx + side * 8 - (side < 0 ? wide : 0), width - wide - 2);
    room.take(left + wide / 2, cy + 4, wide);
    const group = shape("g", { class: `mark ${kind}${later}${n === current ? " current" : ""}` });
    group.append(shape("rect", { x: left, y: cy - 9, width: wide, height: 18, rx: 9 }), shape("text", { x: left + wide / 2, y: cy + 4 }, word));
    return [...made, group];
  }

  function drawNote(step, n, room) {
    if (step.came !== undefined || step.left !== undefined) return [];
    const bad = step.kind === "fault" || step.kind === "error";
    const group = shape("g", { class: `${bad ? "broke" : ""}${n > current ? " later" : ""}` });
    if (bad) group.append(shape("rect", { x: 0, y: step.row.y - 12, width, height: ROW * step.said.length + 4 }));
    const most = Math.floor((Math.min(width, diagram.clientWidth) - GUTTER) / 5.7);
    step.said.forEach((line, k) => {
      const text = line.length > most ? `${line.slice(0, most - 1)}…` : line, wide = text.length * 5.7;
      room.take(GUTTER + 2 + wide / 2, step.row.y + ROW * k + 1, wide);
      group.append(shape("text", { x: GUTTER + 2, y: step.row.y + ROW * k + 1, class: "note" }, (bad && !k ? "⚡ " : "") + text));
    });
    return [group];
  }

  function draw() {
    const top = diagram.scrollTop, tall = diagram.clientHeight;
    if (drawn && drawn.current === current && drawn.chosen === chosen && Math.abs(drawn.top - top) < MARGIN - 200) return;
    drawn = { current, chosen, top };
    const [low, high] = [top - MARGIN, top + tall + MARGIN];
    const seen = (a, b) => a < high && b > low;
    const parts = [];
    for (const actor of run.actors) parts.push(shape("line", { x1: x(actor.name), x2: x(actor.name), y1: 0, y2: height, class: `life ${isSwitch(actor.name) ? "switch" : ""}` }));
    for (const mark of run.marks) {
      const [y1, y2] = [heightAt(mark.from), mark.to === null ? height : heightAt(mark.to)];
      if (mark.at.length === 2) {
        const [a, b] = mark.at.map(x).sort((p, q) => p - q);
        parts.push(shape("rect", { x: a, y: y1, width: b - a, height: Math.max(y2 - y1, 2), class: "between" }));
      } else if (["switch-restart", "worker-kill", "worker-pause"].includes(mark.kind)) {
        parts.push(shape("line", { x1: x(mark.at[0]), x2: x(mark.at[0]), y1, y2, class: "away" }));
      }
    }
    for (const gap of gaps.filter((each) => seen(each.y, each.y))) {
      parts.push(shape("line", { x1: GUTTER, x2: width, y1: gap.y, y2: gap.y, class: "gap" }), shape("text", { x: GUTTER - 8, y: gap.y + 4, class: "clock" }, `≈ ${span(gap.ns)}`));
    }
    const room = emptyRoom();
    const above = steps.flatMap((step, n) => (seen(step.row.y, step.row.y + ROW * step.said.length) ? [...drawMark(step, n, room), ...drawNote(step, n, room)] : []));
    const lines = byHeight.filter((arrow) => seen(arrow.start.y, arrow.end.y)).map((arrow) => drawArrow(arrow, room));
    parts.push(...lines.map(([line]) => line));
    const words = [...lines.map(([, label]) => label), ...above]; // no line, and nothing that moves, runs through words
    let written = -99;
    steps.forEach((step, n) => {
      const y = step.row.y;
      if (seen(y, y) && y - written >= 13) {
        words.push(shape("text", { x: GUTTER - 8, y: y + 4, class: `clock${n > current ? " later" : ""}` }, ms(step.t, GUTTER < 60 ? 3 : 4)));
        written = y;
      }
    });
    layers.lines.replaceChildren(...parts);
    layers.words.replaceChildren(...words);
  }

  function drawHand() {
    layers.hand.replaceChildren(shape("line", { x1: 0, x2: width, y1: hand, y2: hand, class: "hand" }));
    const parts = [];
    for (const arrow of byHeight) {
      const { x1, x2, y1, y2 } = ends(arrow), share = (hand - y1) / (y2 - y1 || 1);
      if (y1 > hand || y2 <= hand || (arrow.lost && !arrow.lost.includes("down") && share > 0.55)) continue;
      const group = shape("g", { class: `arrow ${arrow.kind}` });
      group.append(shape("circle", { cx: x1 + (x2 - x1) * share, cy: hand, r: 5.5, class: "flying", fill: "var(--colour)" }));
      parts.push(group);
    }
    layers.moving.replaceChildren(...parts);
  }

  // The panel beside it

  function chips(step) {
    const list = [...(step.came !== undefined ? [step.came] : []), ...(step.left || [])];
    if (!list.length) return null;
    return node("div", { class: "chips" }, ...list.map((number) => {
      const arrow = arrows[number], into = number === step.came;
      return node("button", { type: "button", "aria-pressed": String(chosen === number), onclick: () => choose(number) }, `${arrow.label} ${into ? `← ${arrow.from}` : `→ ${arrow.to}`}${arrow.lost ? " ✕" : ""}`);
    }));
  }

  function showRule() {
    const step = steps[current];
    if (!step.rule) return at("rule").replaceChildren();
    const rows = PARTS.flatMap((part, n) => {
      const word = step.case[n], says = run.words[part][word];
      return [node("dt", {}, part), node("dd", {}, ...(word === "–" ? [says] : [node("b", {}, word), node("span", {}, ` – ${says}`)]))];
    });
    const counted = Object.entries(step.counts || {}).map(([name, n]) => (n > 1 ? `${name} ${n} times` : name));
    if (counted.length) rows.push(node("dt", {}, "counts"), node("dd", {}, counted.join(", ")));
    return at("rule").replaceChildren(node("h2", {}, `Its row in the table: “${step.rule}”`), node("dl", {}, ...rows));
  }

  function showNow() {
    const step = steps[current], before = current ? step.t - steps[current - 1].t : 0;
    const five = step.rule && run.rules[step.rule];
    at("now").replaceChildren(
      node("div", { class: "when" }, node("span", {}, `step ${current + 1} of ${steps.length}`), node("span", {}, `${ms(step.t)} ms, +${span(before)}`)),
      ...step.said.map((line, n) => node("p", { class: n ? "" : "first" }, line)),
      five ? node("div", { class: "five" }, node("b", {}, `${step.rule[0]}.`), ` ${five}`) : "",
      chips(step) || "",
    );
  }

  const payloadOf = (arrow) => (arrow.layers.find(([name]) => name === "payload") || [])[1]?.[1] || "";

  function slotCard(name, slot, touched, before) {
    const full = slot.in.length === slot.of.length, changed = before && before.message === slot.message ? before.numbers : null;
    const whole = slot.sum || full, say = slot.mismatch ? "MISMATCH" : slot.sum ? "sum" : full ? "rack's sum" : `${slot.in.length} of ${slot.of.length}`;
    const old = changed === null || changed === undefined ? [] : changed.split(" ");
    const digits = slot.numbers ? slot.numbers.split(" ").flatMap((number, n) => [" ", touched && number !== old[n] ? node("mark", {}, number) : number]).slice(1) : [];
    const adds = touched && steps[current].case[4] === "add" && digits.length ? payloadOf(arrows[steps[current].came]) : "";
    return node("div", { class: `slot${touched ? " touched" : ""}${whole ? " whole" : ""}${slot.mismatch ? " bad" : ""}`, "data-slot": name },
      node("div", { class: "top" }, node("b", {}, `m${slot.message}.${slot.index}`), node("span", {}, `slot ${slot.slot}`)),
      node("div", { class: "bits", title: "who has contributed" }, ...slot.of.map((who, n) => node("i", { class: slot.in.includes(n) ? "in" : "" }, who)), node("em", {}, say)),
      adds ? node("div", { class: "numbers added" }, `+ ${adds}`) : null,
      digits.length ? node("div", { class: "numbers" }, ...digits, " …") : node("div", { class: "numbers none" }, "the header"),
      generations > 1 ? node("div", { class: "numbers none" }, `generation ${slot.generation}`) : null);
  }
  const generations = new Set(steps.flatMap((step) => Object.values(step.changes || {}).filter((value) => value && value.generation).map((value) => value.generation))).size;

  function showSlots() {
    const touched = steps[current].touched, before = current ? new Map(stateAt(current - 1)) : new Map(), values = stateAt(current);
    const parts = [];
    for (const actor of run.actors.filter((each) => each.kind !== "host")) {
      const mine = [...values].filter(([, value]) => value.switch === actor.name).sort(([, a], [, b]) => a.slot - b.slot);
      if (mine.length) parts.push(node("p", { class: "at" }, actor.name), node("div", { class: "cards" }, ...mine.map(([name, slot]) => slotCard(name, slot, name === touched, before.get(name)))));
    }
    const kept = at("slots").querySelector(".list")?.scrollTop || 0;
    at("slots").replaceChildren(node("h2", {}, "Slots"), node("div", { class: "list" }, ...(parts.length ? parts : [node("p", {}, "All are empty.")])));
    at("slots").querySelector(".list").scrollTop = kept;
    const list = at("slots").querySelector(".list"), card = list?.querySelector(".touched");
    if (card && (card.offsetTop < list.scrollTop || card.offsetTop + card.offsetHeight > list.scrollTop + list.clientHeight)) list.scrollTop = card.offsetTop - 30;
  }

  function showWorkers() {
    const workers = [...stateAt(current).values()].filter((value) => value.worker);
    if (!workers.length) return at("workers").replaceChildren();
    const rows = workers.sort((a, b) => a.worker.localeCompare(b.worker)).map((each) => node("tr", {}, node("td", {}, `rank ${each.rank} (${each.host})`), node("td", {}, String(each.posted)), node("td", {}, String(each.acked)), node("td", {}, String(each.received)), node("td", {}, each.expects)));
    const head = ["worker", "posted", "acknow­ledged", "received", "waits for PSN"].map((name) => node("th", {}, name));
    return at("workers").replaceChildren(node("h2", {}, "Workers, in messages"), node("div", { class: "wide" }, node("table", {}, node("tr", {}, ...head), ...rows)));
  }

  function showPacket() {
    if (chosen === null) return at("packet").replaceChildren();
    const arrow = arrows[chosen];
    const fate = [...arrow.strikes.map((kind) => STRIKES[kind]), arrow.lost].filter(Boolean).join(", ");
    const layers = arrow.layers.map(([name, values]) => node("div", { class: "layer" }, node("h3", {}, name), node("dl", {}, ...run.layers[name].flatMap((field, n) => [node("dt", {}, field), node("dd", {}, values[n])]))));
    return at("packet").replaceChildren(
      node("h2", {}, `${arrow.again ? "Again " : ""}${arrow.label}`),
      node("p", {}, `${arrow.from} → ${arrow.to}, sent at ${ms(arrow.sent)} ms, ${span(arrow.arrives - arrow.sent)} under way`),
      fate ? node("p", { class: "fate" }, fate) : "",
      ...layers);
  }

  // Playing

  function choose(number) {
    chosen = number;
    showPacket();
    for (const chip of at("now").querySelectorAll(".chips button")) chip.setAttribute("aria-pressed", "false");
    showNow();
    draw();
  }

  const slider = at("slider"), play = at("play");
  function show() {
    const step = steps[current];
    chosen = step.came ?? (step.left || [null])[0];
    slider.value = current;
    at("count").textContent = `${current + 1} / ${steps.length}`;
    at("first").disabled = at("back").disabled = current === 0;
    at("forth").disabled = current === steps.length - 1;
    at("fault").disabled = nextFault() === null;
    showNow();
    showSlots();
    showRule();
    showPacket();
    showWorkers();
    follow();
    history.replaceState(null, "", `#${current + 1}`);
  }

  let frame = 0;
  function moveTo(y, duration, then) {
    cancelAnimationFrame(frame);
    const from = hand, started = performance.now();
    function tick(now) {
      const share = duration ? Math.min(1, (now - started) / duration) : 1;
      hand = from + (y - from) * share;
      diagram.scrollTop = hand - (diagram.clientHeight - HEAD) * 0.45;
      draw();
      drawHand();
      if (share < 1) frame = requestAnimationFrame(tick);
      else if (then) then();
    }
    tick(started);
  }

  // Where the diagram is wider than its window: so that what happens is in it.
  function follow() {
    const { where } = steps[current];
    if (!places.has(where) || width <= diagram.clientWidth) return;
    const [low, high] = [diagram.scrollLeft + GUTTER + column / 2, diagram.scrollLeft + diagram.clientWidth - column];
    if (x(where) < low || x(where) > high) diagram.scrollLeft = x(where) - diagram.clientWidth / 2;
  }

  function go(step, quick = false) {
    const to = Math.max(0, Math.min(steps.length - 1, step)), far = Math.abs(to - current) > 1;
    current = to;
    show();
    moveTo(steps[current].row.y, calm.matches || far || quick ? 0 : 180);
  }

  function showPlaying() {
    play.classList.toggle("playing", playing);
    play.setAttribute("aria-label", playing ? "Pause" : "Play");
  }

  function pause() {
    if (!playing) return;
    playing = false;
    showPlaying();
    moveTo(steps[current].row.y, 0);
  }

  function next() {
    if (!playing) return;
    if (current === steps.length - 1) return pause();
    const speed = Number(at("speed").value), target = steps[current + 1].row.y, distance = Math.abs(target - hand);
    const duration = calm.matches ? 0 : Math.min(1600, 350 + 12 * distance) / speed;
    moveTo(target, duration, () => {
      if (!playing) return;
      current += 1;
      show();
      draw();
      setTimeout(next, (calm.matches ? 900 : 250) / speed);
    });
  }

  function toggle() {
    if (playing) return pause();
    if (current === steps.length - 1) go(0, true);
    playing = true;
    showPlaying();
    return next();
  }

  function nextFault() {
    const found = steps.findIndex((step, n) => n > current && step.fault);
    return found < 0 ? null : found;
  }

  function byHand(step) {
    pause();
    go(step);
  }

  at("first").addEventListener("click", () => byHand(0));
  at("back").addEventListener("click", () => byHand(current - 1));
  at("forth").addEventListener("click", () => byHand(current + 1));
  at("fault").addEventListener("click", () => byHand(nextFault() ?? current));
  play.addEventListener("click", toggle);
  slider.max = steps.length - 1;
  slider.addEventListener("input", () => { pause(); go(Number(slider.value), true); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("select, summary")) return;
    const keys = { ArrowLeft: () => byHand(current - 1), ArrowRight: () => byHand(current + 1), " ": toggle, Home: () => byHand(0), End: () => byHand(steps.length - 1), f: () => byHand(nextFault() ?? current) };
    if (!(event.key in keys) || (event.key === " " && event.target.closest?.("button"))) return;
    event.preventDefault();
    keys[event.key]();
  });
  drawing.addEventListener("click", (event) => {
    const found = event.target.closest(".arrow[data-arrow]");
    if (!found) return;
    pause();
    choose(Number(found.dataset.arrow));
    at("packet").scrollIntoView({ block: "nearest" });
  });
  diagram.addEventListener("scroll", () => requestAnimationFrame(draw));
  new ResizeObserver(() => { measure(); moveTo(playing ? hand : steps[current].row.y, 0, playing ? next : null); }).observe(diagram);

  const ticks = new Map();
  steps.forEach((step, n) => {
    const place = Math.round((1000 * n) / Math.max(1, steps.length - 1)) / 10;
    if (step.fault) ticks.set(place, "");
    else if (step.said.some((line) => line.includes("has the result")) && !ticks.has(place)) ticks.set(place, "done");
  });
  at("ticks").replaceChildren(...[...ticks].map(([place, kind]) => {
    const tick = node("i", { class: kind });
    tick.style.left = `${place}%`;
    return tick;
  }));
  at("legend").replaceChildren(...Object.entries(KINDS).map(([kind, says]) => {
    const sample = node("b");
    sample.style.color = kind === "broken" ? "var(--fault)" : `var(--${{ partial: "up", result: "down" }[kind] || kind})`;
    return node("li", {}, sample, says);
  }));

  // Where it begins: the first packet of a worker, or the step that the address names.
  const named = Number(location.hash.slice(1));
  const begin = steps.findIndex((step) => step.kind === "sends" && places.has(step.where) && !isSwitch(step.where));
  measure();
  go(Number.isInteger(named) && named > 0 ? named - 1 : Math.max(0, begin), true);
  document.documentElement.dataset.drawn = "yes";
})();
