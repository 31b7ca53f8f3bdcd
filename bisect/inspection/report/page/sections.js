"use strict";
/* What each command's result becomes: blocks {title, nodes, command}, and commands [what it gives, line]. The answer stands in the page before any script
 * runs (answer.h). Fields that nothing here reads are shown as they are, in a block of their own. */
{
  const has = (value) => (Array.isArray(value) ? value.length > 0 : lb.isColumns(value) ? value.rows > 0 : value !== null && value !== undefined && value !== "" && !(typeof value === "object" && Object.keys(value).length === 0));
  const block = (title, nodes, command) => ({ title, nodes: [nodes].flat(), command });

  const line = (part, usage) => part.result.command || usage;
  const TITLES = { diff: "Difference of two captures", bisect: "Cause of a failure", explain: "What turns one capture into the other", parity: "Parity of log-probabilities", ranks: "Ranks", watch: "Watch over a run", audit: "Audit of a checkpoint", fingerprint: "Fingerprints of tensors", check: "One run alone", replay: "Replay", ls: "Receipt" };
  lb.titleOf = (part) => {
    const title = TITLES[part.command] || `lastbit ${part.command}`;
    const alike = lb.parts.filter((other) => other.command === part.command);
    return alike.length > 1 ? `${title} ${alike.indexOf(part) + 1}` : title;
  };

  const place = (at) =>
    [["step", "step "], ["rank", "rank "], ["phase", ""], ["layer", "layer "], ["op", ""], ["index", "op "], ["ranks", "ranks "], ["tensor", ""]].filter(([key]) => has(at[key])).map(([key, before]) => before + [at[key]].flat().join(", ")).join(", ");

  const USAGE = { diff: "lastbit diff A B", bisect: "lastbit bisect CAPTURE", explain: "lastbit explain A B", parity: "lastbit parity A B", ranks: "lastbit ranks CAPTURE", watch: "lastbit watch LOG", audit: "lastbit audit CHECKPOINT", fingerprint: "lastbit fingerprint FILE --against OTHER", check: "lastbit check CAPTURE", replay: "lastbit replay CAPTURE", ls: "lastbit ls --tables CAPTURE" };

  /* ---- pieces that several commands share ---- */

  const findings = (result, title = "Findings", key = "findings") => {
    const found = result[key];
    if (!has(found)) return [];
    if (lb.isTable(found)) return [block(title, lb.table(title, lb.list(found)))];
    return [block(title, lb.element("ul", null, [found].flat().map((text) => lb.element("li", null, lb.value(text)))))];
  };

  /* Findings of one kind behind one line, the first of each kind in full; every one of them is in the table. */
  const folded = (title, list, nameOf) => {
    const groups = new Map();
    for (const i of lb.rows(list)) {
      const name = nameOf((key) => list.get(i, key));
      groups.set(name, [...(groups.get(name) || []), i]);
    }
    return [...groups].map(([name, rows], g) => {
      const first = lb.format(list.get(rows[0], "message") ?? list.get(rows[0], "text"));
      const some = { length: rows.length, of: rows.length, keys: list.keys, get: (i, key) => list.get(rows[i], key) };
      return lb.element("details", { class: "finding", ...(g === 0 && rows.length === 1 ? { open: "" } : {}) }, lb.element("summary", null, lb.element("strong", null, lb.text(name)), ` (${lb.format(rows.length)}) `, lb.text(first)), lb.table(`${title}: ${lb.plain(String(name))}`, some));
    });
  };
  const foldedFindings = (result, title, kinds = []) => {
    if (!lb.isTable(result.findings)) return findings(result, title);
    const list = lb.list(result.findings), sorted = lb.sorted(list, (get) => (get("note") === true ? 1000 : 0) + kinds.indexOf(get("kind")));
    return [block(title, folded(title, sorted, (get) => (get("note") === true ? `note: ${lb.kind(get("kind"))}` : lb.kind(get("kind")))))];
  };

  const tables = (result, wanted) => wanted.filter(([key]) => has(result[key])).map(([key, title, columns]) => block(title, lb.isTable(result[key]) ? lb.table(title, lb.list(result[key]), columns) : lb.value(result[key])));

  /* Counts by bin: {"-3": 12, …} or [["2^3", 12], …]. */
  const isHistogram = (value) => value !== null && typeof value === "object" && !lb.isTable(value) && Object.keys(value).length > 0 && (Array.isArray(value) ? value.every((bin) => Array.isArray(bin) && bin.length === 2) : Object.values(value).every((count) => typeof count === "number"));
  const histogram = (title, value, x) => {
    const bars = Array.isArray(value) ? value : Object.entries(value).sort((a, b) => Number(a[0]) - Number(b[0]) || 0);
    const rows = lb.list(bars.map(([bin, count]) => ({ bin, count })));
    const many = Math.max(...bars.map(([, count]) => count)) > 200;
    return lb.element("div", null, lb.element("h4", null, title), lb.plotBars({ label: `Histogram: ${title}`, caption: many ? "The count is on a logarithmic scale." : "", x, y: "count", bars, log: many }).figure,
      lb.element("details", null, lb.element("summary", null, "Its numbers"), lb.table(title, rows)));
  };
  const histograms = (result) => Object.entries(result).filter(([key, value]) => /histogram/.test(key) && has(value)).flatMap(([key, value]) => {
    const all = isHistogram(value) ? [[key.replaceAll("_", " "), value]] : Object.entries(value).filter(([, inner]) => isHistogram(inner));
    return all.map(([name, bins]) => histogram(name.replaceAll("_", " "), bins, name.replaceAll("_", " ")));
  });

  const LOSS_COLUMNS = [["loss_a", "training loss (first side)"], ["loss_b", "serving loss (second side)"], ["loss_factor", "ratio"]];
  const TOKEN_COLUMNS = [["kind", "kind of token"], ["count", "tokens"], ["verdict", "verdict"], ["reason", "fails by"], ...LOSS_COLUMNS, ["k3", "k3"], ["noise", "noise floor"], ["above_noise", "k3 / noise"], ["kl", "KL"], ["top1", "top-1 agreement"], ["max_abs", "max |Δ log p|"], ["mean_abs", "mean |Δ log p|"], ["perplexity_a", "perplexity A"], ["perplexity_b", "perplexity B"], ["held", "cut at the limit"], ["impossible", "impossible"]];
  /* Counts of what is rare are shown where there is any. */
  const tokenColumns = (list) => TOKEN_COLUMNS.filter(([key]) => !["held", "impossible"].includes(key) || lb.rows(list).some((i) => list.get(i, key) > 0));
  const sourceLine = (source) => (has(source) ? `${source.file}:${source.line}${source.function ? ` in ${source.function}` : ""}${source.text ? `: ${source.text}` : ""}` : null);
  const sourceFacts = (at) => [[has(at.source_b) ? "line, first side" : "line", sourceLine(at.source)], ["line, second side", sourceLine(at.source_b)], ["line of forward", sourceLine(at.source_forward) === sourceLine(at.source) ? null : sourceLine(at.source_forward)]];
  const called = (at) => (Array.isArray(at.arguments) ? at.arguments.map((x) => `${x.name} ${x.first} / ${x.second}${x.group ? ` (group ${x.group})` : ""}`).join(", ") : null);
  const ROW_COLUMNS = [["layer", "layer"], ["step", "step"], ["rank", "rank"], ["phase", "phase"], ["verdict", "verdict"], ["local", "made here"], ["inherited", "from its inputs"], ["rel_l2", "relative L2"], ["max_abs", "max abs"], ["max_rel", "max rel"], ["max_ulp", "max ulp"], ["cosine", "cosine"], ["differing", "differing"], ["elements", "elements"], ["bound_ratio", "of its bound"], ["op", "op"], ["index", "index"], ["parameter", "parameter"], ["pattern", "pattern"], ["why", "why"]];

  const rest = (result, used) => {
    const known = new Set(["schema", "command", "inputs", ...used]);
    const others = Object.entries(result).filter(([key, value]) => !known.has(key) && has(value) && !/histogram/.test(key));
    if (!others.length) return [];
    return [block("Other fields", others.map(([key, value]) => lb.element("details", null, lb.element("summary", null, lb.text(key.replaceAll("_", " "))), lb.value(value))))];
  };

  /* ---- diff ---- */

  const drift = (derived) => {
    const all = lb.list(derived.by_layer), nodes = [];
    const phases = [...new Set(lb.rows(all).map((i) => all.get(i, "phase")))];
    const measured = phases.filter((phase) => lb.rows(all).some((i) => all.get(i, "phase") === phase && lb.number(all.get(i, "rel_l2")) > 0));
    if (measured.length) {
      const state = { phase: measured[0], measure: "rel_l2" };
      const MEASURES = [["rel_l2", "relative L2"], ["max_abs", "largest absolute difference"], ["max_ulp", "largest distance in ulp"]];
      const names = [];
      const SERIES = [
        ["made here, more than rounding", (local) => local === "diverged", { colour: "--bad", mark: "rectRot" }],
        ["made here (local, isolated)", (local) => local !== "diverged" && local !== "identical", { colour: "--series-b", mark: "triangle" }],
        ["only from its inputs (inherited, chained)", (local) => local === "identical", { colour: "--series-a", mark: "circle", hollow: true }],
      ];
      const series = () => {
        const rows = lb.rows(all).filter((i) => all.get(i, "phase") === state.phase);
        names.splice(0, names.length, ...rows.map((i) => all.get(i, "layer")));
        return SERIES.map(([name, keep, look]) => ({ name, ...look, points: rows.map((i, x) => [x, i]).filter(([, i]) => keep(all.get(i, "local"))).map(([x, i]) => [x, lb.number(all.get(i, state.measure))]) }));
      };
      series();
      const plot = lb.plotPoints({ label: "Drift by layer: how far each layer's results are apart; diamonds and triangles where the layer itself differs, circles where only its inputs do. The table below has the numbers.", caption: "Logarithmic; what is equal is not drawn.", x: "layer", y: "difference", log: true, names, series });
      nodes.push(lb.element("div", { class: "controls" },
        lb.select("Phase", measured.map((phase) => [phase, phase]), (value) => { state.phase = value; series(); plot.again(); }),
        lb.select("Measure", MEASURES, (value) => { state.measure = value; plot.again(); })), plot.figure);
    }
    nodes.push(lb.table("Layers by phase: the worst over ranks and steps", all, [["layer", "layer"], ["phase", "phase"], ["verdict", "verdict"], ["local", "made here"], ["inherited", "from its inputs"], ["rel_l2", "relative L2"], ["max_abs", "max abs"], ["max_ulp", "max ulp"], ["bound_ratio", "of its bound"], ["ranks", "ranks that differ"], ["worst_rank", "worst rank"], ["differing", "differing"], ["elements", "elements"], ["why", "why"]]));
    return nodes;
  };

  const firstDifference = (result) => {
    if (!has(result.first)) return [];
    const facts = (at) => lb.facts([["where", place(at)], ...sourceFacts(at), ["verdict", lb.cell("verdict", at.verdict)], ["made here", at.local], ["from its inputs", at.inherited], ["called with", called(at)], ["means", at.means], ["why", at.why], ["after module", at.after_module], ["before module", at.before_module], ["parameter", at.parameter], ["pattern", at.pattern], ["relative L2", at.rel_l2], ["max abs", at.max_abs], ["max ulp", at.max_ulp], ["differing", has(at.differing) ? `${lb.format(at.differing)} of ${lb.format(at.elements)}` : null]]);
    const same = has(result.earliest) && JSON.stringify(result.earliest) === JSON.stringify(result.first);
    const near = lb.where(lb.list(result.layers), (get) => get("step") === result.first.step && get("rank") === result.first.rank && get("layer") === result.first.layer);
    return [block("First difference", [lb.element("h4", null, same ? "The first, and of the worst verdict" : "The first of the worst verdict"), facts(result.first), ...(same || !has(result.earliest) ? [] : [lb.element("h4", null, "The earliest of any kind"), facts(result.earliest)]), ...(near.length ? [lb.table("What else is known of this layer there", near, ROW_COLUMNS)] : [])])];
  };

  const flips = (result) => {
    if (!has(result.routing)) return [];
    if (!Array.isArray(result.routing) || !result.routing.some((row) => row && (row.flips instanceof Object || row.layers instanceof Object)))
      return [block("Routing: different experts chosen", lb.table("Flips by layer; a margin says how near the choice was", lb.list(result.routing), [["layer", "layer"], ["step", "step"], ["rank", "rank"], ["tokens", "tokens"], ["choices", "choices"], ["flips", "flips"], ["share", "share"], ["near_ties", "near ties"], ["explained", "explained"], ["largest_margin", "largest margin"]]))];
    return [block("Routing: different experts chosen", result.routing.flatMap((one) => [["layers", "By layer"], ["flips", "Each flip, with its margin"], ["endings", "Effect on what leaves the step"]].filter(([key]) => has(one[key])).map(([key, title]) => lb.table(title, lb.list(one[key])))))];
  };

  const isCollective = (get) => get("phase") === "communication" || /^(c10d|_c10d_functional|nccl|mpi)\b/i.test(String(get("op") || get("layer") || ""));
  const collectives = (result, list, columns) => {
    const stated = lb.isTable(result.collectives) ? [lb.table("Collectives", lb.list(result.collectives))] : [];
    const found = list ? lb.where(list, isCollective) : { length: 0 };
    if (found.length) stated.push(lb.table("Rows of collectives", found, columns));
    return stated.length ? [block("Collectives", stated)] : [];
  };

  const diff = (part) => {
    const r = part.result, rows = lb.list(r.layers), again = line(part, USAGE.diff);
    const bars = Object.entries(part.derived.histograms || {}).filter(([, bins]) => has(bins)).map(([key, bins]) => histogram(key === "max_ulp" ? "Largest distance in ulp" : "Relative L2", bins, key === "max_ulp" ? "ulp, in powers of two" : "relative L2, in decades"));
    const blocks = [
      ...(part.derived.map ? [block("Layers and ranks", lb.plotMap(part.derived.map), again)] : []),
      ...firstDifference(r),
      ...(has(part.derived.by_layer) ? [block("Drift by layer", drift(part.derived), again)] : []),
      ...(bars.length ? [block("How large the differences are", lb.element("div", { class: "plots" }, bars), again)] : []),
      ...tables(r, [["tokens", "Tokens", TOKEN_COLUMNS]]),
      ...flips(r),
      ...collectives(r, rows, ROW_COLUMNS),
      ...tables(r, [["structure", "Ops that one side alone runs"], ["missing", "What could not be judged"]]),
      ...findings(r),
      ...(rows.length ? [block("Every row", lb.table("Layers, values and parameters as compared", rows, ROW_COLUMNS), again)] : []),
      ...rest(r, ["verdict", "first", "earliest", "layers", "structure", "missing", "tokens", "routing", "findings", "collectives", "ops", "sources", "tokens_approximate"]),
    ];
    return {
      blocks,
      commands: [["The verdict, and every layer with its numbers", again], ["Every bit of it as JSON", `${again} --json`], ["Identical layers and values, too", `${again} --all`], ...(again === USAGE.diff ? [] : [["Which kernel, precision or order makes the difference", again.replace(/^lastbit diff/, "lastbit explain")]])],
    };
  };

  /* ---- bisect ---- */

  const outline = (r) => {
    const trials = lb.list(r.trials), stages = lb.list(r.stages);
    const items = lb.rows(stages).map((s) => {
      const name = stages.get(s, "stage");
      const of = lb.rows(trials).filter((i) => trials.get(i, "stage") === name);
      const inner = of.map((i) => lb.element("li", { class: "trial" }, lb.word(trials.get(i, "outcome")), " ", lb.text(trials.get(i, "description")), ...(has(trials.get(i, "what")) ? ["; ", lb.text(trials.get(i, "what"))] : []), ...(has(trials.get(i, "change")) ? [lb.element("div", null, lb.element("code", null, lb.text(r.shows && !String(r.shows).includes("--run") ? `${r.shows} ${trials.get(i, "change")}` : trials.get(i, "change"))))] : []), lb.element("div", { class: "note" }, `${lb.format(trials.get(i, "seconds"))} s${has(trials.get(i, "purpose")) ? `, ${lb.format(trials.get(i, "purpose"))}` : ""}`)));
      const heading = [lb.element("strong", null, lb.text(name)), " ", lb.word(stages.get(s, "outcome")), ` (${of.length} trial${of.length === 1 ? "" : "s"}) `, lb.text(stages.get(s, "note"))];
      return lb.element("li", { class: "stage" }, inner.length ? lb.element("details", { open: "" }, lb.element("summary", null, heading), lb.element("ul", null, inner)) : heading);
    });
    return lb.element("ul", { class: "outline" }, items);
  };

  const bisect = (part) => {
    const r = part.result, again = line(part, USAGE.bisect);
    const who = (c) => lb.facts([["axis", c.axis], ["where", place(c)], ...sourceFacts(c), ["block class", c.block], ["ranks", has(c.ranks) ? lb.value(c.ranks) : null], ["parameter", c.parameter], ["why", c.why]]);
    return {
      blocks: [
        ...(has(r.failure) ? [block("The failure", lb.facts([["where", place(r.failure)], ["kind", r.failure.kind], ["what", r.failure.what]]))] : []),
        ...(has(r.begins) ? [block("Where it begins", lb.facts([["where", place(r.begins)], ...sourceFacts(r.begins), ["what", r.begins.text]]))] : []),
        ...(has(r.culprits) ? [block("Culprits", (Array.isArray(r.culprits) ? r.culprits.map(who) : [lb.value(r.culprits)]))] : []),
        ...(has(r.stages) ? [block("What was tried, one change at a time", outline(r), again)] : []),
        ...(has(r.cure) ? [block("The cure", lb.facts([["change", r.cure], ["reproducer", r.reproducer], ["its ops", (r.reproducer_size || {}).ops], ["its bytes", (r.reproducer_size || {}).bytes]]), r.cures)] : []),
        ...collectives(r),
        ...findings(r),
        ...rest(r, ["outcome", "failure", "begins", "culprit", "culprits", "stages", "trials", "cure", "cures", "shows", "reproducer", "reproducer_size", "seconds", "reason", "findings", "record", "collectives"]),
      ],
      commands: [["The search", again], ...(r.shows ? [[r.outcome === "clean" ? "What this run proves by itself: gradients, tokens, where digits go" : "The failure, replayed", r.shows]] : []), ...(r.cures ? [["The same with the cure: it does not fail", r.cures]] : []), ...(r.reproducer ? [["The smallest capture that still fails", `lastbit bisect --check ${lb.shellWord(r.reproducer)}`]] : []), ...(r.record ? [["What was not recorded, recorded again", r.record]] : [])],
    };
  };

  /* ---- explain ---- */

  const explain = (part) => {
    const r = part.result, again = line(part, USAGE.explain), list = lb.list(r.findings), layers = lb.list(r.layers);
    const names = lb.rows(layers).map((i) => layers.get(i, "layer"));
    const series = () => [["local", "isolated: from the same inputs", "--series-b", "triangle"], ["total", "compounding: along the chain", "--series-a", "circle"]].map(([key, name, colour, mark]) => ({ name, points: lb.rows(layers).map((i) => [i, lb.number(layers.get(i, key))]), colour, mark, line: true }));
    const plot = layers.length ? [lb.plotPoints({ label: "Drift by layer: isolated and compounding. The table below has the numbers.", caption: "Logarithmic; what is equal is not drawn.", x: "layer", y: "relative L2", log: true, names, series }).figure] : [];
    return {
      blocks: [
        ...(list.length ? [block("What turns one side into the other", lb.table("What turns one side into the other", lb.sorted(list, (get) => ["unexplained", "routing", "precision", "kernel", "order"].indexOf(get("cause")) + (get("cause") === "input" ? 10 : 0))))] : findings(r, "What turns one side into the other")),
        ...(layers.length ? [block("Drift by layer", [...plot, lb.table("Layers: isolated and compounding", layers)], again)] : []),
        ...flips(r),
        ...collectives(r, list),
        ...tables(r, [["budget", "How much of the gap each cause makes"], ["rows", "Rows that both have"], ["invariance", "Rows alone and among others"], ["missing", "What could not be judged"]]),
        ...rest(r, ["findings", "layers", "routing", "budget", "rows", "invariance", "missing", "collectives", "ops"]),
      ],
      commands: [["Each cause", again]],
    };
  };

  /* ---- parity ---- */

  const SPAN = 500;
  const probability = (log) => (Number.isFinite(log) ? Math.min(1, Math.exp(log)) : log === -Infinity ? 0 : NaN);
  const heatCell = (side, log) => {
    const p = probability(log), box = lb.element("span", { title: `${side}: p = ${p === p ? lb.format(p) : "not told"}` }, `${side} ${p === p ? Math.round(100 * p) : "–"}`);
    box.style.backgroundColor = p === p ? `hsl(${Math.round(120 * p)} 60% 72%)` : "#ddd";
    return box;
  };

  const heatMap = (heat) => {
    const sequences = lb.list(heat), lists = lb.rows(sequences).map((i) => lb.list(sequences.get(i, "tokens")));
    const pages = lists.flatMap((list, s) => Array.from({ length: Math.max(1, Math.ceil(list.length / SPAN)) }, (_, k) => [s, k * SPAN]));
    const state = { page: 0 }, box = lb.element("ol", { class: "tokens" }), status = lb.element("span", { role: "status" });
    const [back, on] = ["Previous tokens", "Next tokens"].map((text) => lb.element("button", { type: "button" }, text));
    const draw = () => {
      const [s, from] = pages[state.page], list = lists[s], upTo = Math.min(from + SPAN, list.length);
      box.replaceChildren(...Array.from({ length: upTo - from }, (_, k) => {
        const i = from + k, text = list.get(i, "text") ?? `#${lb.format(list.get(i, "id"))}`;
        return lb.element("li", { title: `token ${i}, k3 ${lb.format(list.get(i, "k3"))}` }, lb.element("div", { class: "piece" }, lb.text(text)), lb.element("div", { class: "sides" }, heatCell("A", lb.number(list.get(i, "log_p"))), heatCell("B", lb.number(list.get(i, "log_q")))));
      }));
      box.start = from + 1;
      status.textContent = `sequence ${lb.format(sequences.get(s, "sequence"))}, tokens ${from + 1}–${upTo} of ${list.of}`;
      back.disabled = state.page === 0;
      on.disabled = state.page === pages.length - 1;
    };
    back.addEventListener("click", () => { state.page--; draw(); });
    on.addEventListener("click", () => { state.page++; draw(); });
    draw();
    return [lb.element("p", { class: "note" }, "Each token with its probability in percent on both sides, A (the reference) and B: green where it is high, red where it is low."), lb.element("div", { class: "controls" }, pages.length > 1 ? [back, on] : [], status), box];
  };

  /* A row has no verdict of its own: it fails where a reason is told. */
  const judged = (list) => (list.keys.includes("reason") ? { ...list, keys: [...list.keys, "verdict"], get: (i, key) => (key === "verdict" ? (has(list.get(i, "reason")) ? "fail" : "pass") : list.get(i, key)) } : list);
  const losses = (r) => {
    if (!has(r.loss) || Array.isArray(r.loss)) return [];
    const row = { ...r.loss, verdict: r.verdict, decided: r.decided };
    return [block("Losses side by side", lb.table("Losses of the same tokens on both sides", lb.list([row]), [["first", "training loss (first side)"], ["second", "serving loss (second side)"], ["ratio", "ratio"], ["noise_factor", "ratio of the noise"], ["verdict", "verdict"], ["decided", "decided by"]]))];
  };

  const parity = (part) => {
    const r = part.result, again = line(part, USAGE.parity), kinds = judged(lb.list(r.tokens)), positions = judged(lb.list(r.positions));
    const cells = lb.list(r.cells);
    const names = lb.rows(positions).map((i) => positions.get(i, "kind"));
    const level = (name, value, colour, dash) => (lb.number(value) > 0 ? [{ name, points: [[-0.5, value], [names.length - 0.5, value]], line: true, level: true, colour, dash, mark: "line" }] : []);
    const plot = positions.length > 2 ? [lb.plotPoints({ label: "k3 by position, with the threshold and the noise floor. The table below has the numbers.", caption: "Logarithmic; 0 is not drawn.", x: "position", y: "k3", log: true, names, series: () => [{ name: "k3", points: lb.rows(positions).map((i) => [i, lb.number(positions.get(i, "k3"))]), line: true, colour: "--series-a" }, ...level("threshold", r.threshold, "--series-b", [6, 4]), ...level("noise floor", r.noise_floor, "--series-c", [2, 3])] }).figure] : [];
    return {
      blocks: [
        ...losses(r),
        ...(has(r.heat) ? [block("Every token, both sides", heatMap(r.heat), `${again}${again.includes("--heat") ? "" : " --heat"}`)] : []),
        ...findings(r, "What differs in how tokens were written"),
        ...(kinds.length ? [block("By kind of token", lb.table("Parity by kind of token", kinds, tokenColumns(kinds)), again)] : []),
        ...(has(r.all) && kinds.length !== 1 ? [block("All tokens", lb.table("Parity of all tokens", judged(lb.list([r.all])), tokenColumns(lb.list([r.all]))), again)] : []),
        ...(positions.length ? [block("By position", [...plot, lb.table("Parity by position", positions, tokenColumns(positions))], again)] : []),
        ...(cells.length ? [block("One variable at a time", [lb.facts([["matters", has(r.matters) ? lb.value(r.matters) : "none"]]), lb.table("Runs", cells)], again)] : []),
        ...tables(r, [["worst", "Tokens of the largest k3"]]),
        ...rest(r, ["verdict", "loss", "decided", "threshold", "noise_floor", "findings", "tokens", "all", "positions", "cells", "matters", "heat", "worst"]),
      ],
      commands: [["The table", again], ["Every token in the terminal", `${again}${again.includes("--heat") ? "" : " --heat"}`]],
    };
  };

  /* ---- watch ---- */

  const ALARM_ORDER = ["nonfinite", "loss", "grad_norm", "data", "schedule", "throughput"]; /* as answer_run.c has them: the gravest first */
  const alarmsOf = (list, kind) => lb.rows(list).filter((i) => list.get(i, "kind") === kind);
  const watchPlots = (r) => {
    const alarms = lb.list(r.alarms), curves = r.curves || {}, steps = curves.step || [];
    const KINDS = [["loss", ["loss", "nonfinite"]], ["grad_norm", ["grad_norm"]], ["throughput", ["throughput"]], ["lr", ["schedule"]]];
    const keys = [...new Set([...KINDS.map(([key]) => key), ...Object.keys(curves).filter((key) => key !== "step" && Array.isArray(curves[key]))])];
    return keys.map((key) => {
      const kinds = (KINDS.find(([name]) => name === key) || [key, [key]])[1];
      const found = kinds.flatMap((kind) => alarmsOf(alarms, kind));
      const curve = Array.isArray(curves[key]) ? curves[key] : [];
      const points = curve.filter((value) => Number.isFinite(lb.number(value))).length;
      if (Math.max(points, curve.length ? 0 : found.length) < lb.FEWEST_POINTS) return null; /* the table of alarms says it better */
      const at = (level) => found.filter((i) => alarms.get(i, "level") === level).map((i) => [alarms.get(i, "step"), lb.number(alarms.get(i, "value"))]);
      const log = key === "grad_norm" || key === "loss";
      const series = () => [
        ...(curve.length ? [{ name: key.replace("_", " "), points: steps.map((step, i) => [step, lb.number(curve[i])]), line: true, colour: "--series-a" }] : []),
        { name: "warning", points: at("warning"), colour: "--warn", mark: "triangle" },
        { name: "critical", points: at("critical"), colour: "--bad", mark: "rectRot" },
        ...(curve.length ? [] : [{ name: "what it is compared with", points: found.map((i) => [alarms.get(i, "step"), lb.number(alarms.get(i, "reference"))]), colour: "--series-a", mark: "line" }]),
      ];
      return lb.element("div", null, lb.element("h4", null, key.replace("_", " ")), lb.plotPoints({ label: `${key.replace("_", " ")} by step, with alarms. The table of alarms has their numbers.`, caption: log ? "Logarithmic." : "", x: "step", y: key.replace("_", " "), log, series, integer: true }).figure);
    }).filter((node) => node !== null);
  };

  const watch = (part) => {
    const r = part.result, again = line(part, r.log ? `lastbit watch ${lb.shellWord(r.log)}` : USAGE.watch);
    const alarms = lb.sorted(lb.list(r.alarms), (get) => (get("level") === "critical" ? 0 : 10) + ALARM_ORDER.indexOf(get("kind")));
    const plots = Array.isArray(r.runs) ? [] : watchPlots(r); /* several logs have curves of their own, below */
    const runs = Array.isArray(r.runs) ? r.runs.flatMap((run, i) => [lb.element("h4", null, lb.text(run.log || `run ${i + 1}`)), ...watchPlots(run), lb.table("Alarms", lb.list(run.alarms))]) : [];
    return {
      blocks: [
        ...(plots.length ? [block("Curves and alarms", lb.element("div", { class: "plots" }, plots), again)] : []),
        ...(has(r.alarms) ? [block("Alarms", lb.table("Alarms", alarms), again)] : []),
        ...tables(r, [["holds", "Steps in which no checkpoint should be written"], ["checkpoints", "Checkpoints written inside an excursion"]]),
        ...findings(r),
        ...(runs.length ? [block("Each log", runs)] : []),
        ...(has(r.detectors) ? [block("Detectors beside each other", lb.value(r.detectors))] : []),
        ...rest(r, ["verdict", "alarms", "holds", "checkpoints", "findings", "runs", "detectors", "pattern", "curves", "log"]),
      ],
      commands: [["The alarms", again]],
    };
  };

  /* ---- ranks ---- */

  const RANK_PLOTS = [["Loss over workers", [["loss_std", "standard deviation"], ["loss_range", "range"]]], ["Gradient norm over workers", [["grad_norm_mean", "mean"], ["grad_norm_std", "standard deviation"]]], ["Direction of gradients", [["grad_cosine_mean", "mean cosine"], ["grad_cosine_min", "smallest cosine"]]], ["Mean loss", [["loss_mean", "mean loss"]]]];
  /* Several settings of one job: a row for each, then a plot of each measure with a line for each of them. */
  const SETTING_COLUMNS = [["setting", "setting"], ["verdict", "its workers"], ["apart", "apart by"], ["findings", "findings of its own"], ["loss_mean", "loss mean"], ["loss_std", "loss std"], ["loss_range", "loss range"], ["grad_norm_mean", "norm mean"], ["grad_norm_std", "norm std"], ["grad_cosine_mean", "cosine mean"]];
  const SETTING_LOOKS = [["--series-a", "circle"], ["--series-b", "triangle"], ["--series-c", "rect"], ["--bad", "rectRot"], ["--warn", "star"], ["--fore", "cross"]];
  const settings = (r, again) => {
    if (!lb.isTable(r.settings) || !Array.isArray(r.settings)) return [];
    const own = (s) => lb.where(lb.list((s.report || {}).findings), (get) => get("note") !== true).length;
    const rows = r.settings.map((s) => ({ ...s, setting: s.capture, verdict: s.inconsistent ? "further apart" : s.capture === r.closest ? "closest" : "like the closest", apart: [s.apart || []].flat().join(", "), findings: own(s) }));
    const steps = r.settings.map((s) => lb.list((s.report || {}).steps));
    const series = (key) => r.settings.map((s, k) => ({ name: lb.plain(String(s.capture)), points: lb.rows(steps[k]).map((i) => [steps[k].get(i, "step"), lb.number(steps[k].get(i, key))]), line: true, colour: SETTING_LOOKS[k % SETTING_LOOKS.length][0], mark: SETTING_LOOKS[k % SETTING_LOOKS.length][1], dash: k < SETTING_LOOKS.length ? [] : [5, 3] }));
    const shown = SETTING_COLUMNS.slice(4).filter(([key]) => series(key).some((one) => one.points.filter(([, y]) => Number.isFinite(y)).length >= lb.FEWEST_POINTS));
    const plots = shown.map(([key, name]) => lb.element("div", null, lb.element("h4", null, name), lb.plotPoints({ label: `${name} by step, a line for each setting. The table below has the numbers.`, caption: "", x: "step", y: name, integer: true, series: () => series(key) }).figure));
    const every = lb.list(r.settings.flatMap((s, k) => lb.rows(steps[k]).map((i) => ({ step: steps[k].get(i, "step"), setting: s.capture, ...Object.fromEntries(SETTING_COLUMNS.slice(4).map(([key]) => [key, steps[k].get(i, key)])) }))));
    const sorted = lb.sorted(every, (get) => lb.number(get("step")));
    return [
      block("Settings side by side", lb.table("Settings, means over their steps", lb.list(rows), SETTING_COLUMNS), again),
      ...r.settings.filter((s) => has((s.report || {}).findings)).flatMap((s) => foldedFindings(s.report, `Findings of ${lb.plain(String(s.capture))}`)),
      ...(plots.length ? [block("Dispersion over workers, by setting", lb.element("div", { class: "plots" }, plots), again)] : []),
      ...(sorted.length ? [block("Steps", lb.table("Settings by step", sorted, [["step", "step"], ["setting", "setting"], ...SETTING_COLUMNS.slice(4)]), again)] : []),
    ];
  };

  const ranks = (part) => {
    const r = part.result, again = line(part, r.capture ? `lastbit ranks ${lb.shellWord(r.capture)}` : USAGE.ranks), steps = lb.list(r.steps);
    const COLOURS = ["--series-a", "--series-b"], MARKS = ["circle", "triangle"];
    const plots = RANK_PLOTS.filter(([, keys]) => keys.some(([key]) => lb.rows(steps).filter((i) => Number.isFinite(lb.number(steps.get(i, key)))).length >= lb.FEWEST_POINTS)).map(([title, keys]) => lb.element("div", null, lb.element("h4", null, title), lb.plotPoints({ label: `${title} by step. The table below has the numbers.`, caption: "", x: "step", y: title.toLowerCase(), integer: true, series: () => keys.map(([key, name], k) => ({ name, points: lb.rows(steps).map((i) => [steps.get(i, "step"), lb.number(steps.get(i, key))]), line: true, colour: COLOURS[k], mark: MARKS[k], dash: k ? [5, 3] : [] })) }).figure));
    return {
      blocks: [
        ...settings(r, again),
        ...foldedFindings(r, "Findings"),
        ...collectives(r),
        ...(plots.length ? [block("Dispersion over workers", lb.element("div", { class: "plots" }, plots), again)] : []),
        ...(steps.length ? [block("Steps", lb.table("Dispersion by step", steps), again)] : []),
        ...tables(r, [["layers", "By layer"]]),
        ...rest(r, ["verdict", "findings", "collectives", "steps", "layers", "settings", "closest"]),
      ],
      commands: [["The table", again]],
    };
  };

  /* ---- audit ---- */

  const audit = (part) => {
    const r = part.result, again = line(part, r.checkpoint ? `lastbit audit ${lb.shellWord(r.checkpoint)}` : USAGE.audit);
    return {
      blocks: [...foldedFindings(r, "Findings", (part.answer || {}).kinds), ...tables(r, [["precision", "Adapter: merged against online, by precision"], ["modules", "Adapter: each module"], ["merged", "How adapters were merged"], ["pairs", "Tensor by tensor"], ["notes", "Notes"]]), ...rest(r, ["verdict", "findings", "groups", "precision", "modules", "merged", "pairs", "notes", "checkpoint"])],
      commands: [["The findings", again]],
    };
  };

  /* ---- check ---- */

  const ONE_BY_ONE = 20, LINES = 10, LONGEST = 80;
  /* Sentences; those behind the first ten are folded. */
  const sentences = (title, list) => {
    const items = lb.isColumns(list) || !Array.isArray(list) ? [list] : list, item = (text) => lb.element("li", null, typeof text === "string" ? lb.text(text, 400) : lb.value(text));
    const more = items.slice(LINES);
    return block(title, [lb.element("ul", null, items.slice(0, LINES).map(item)), ...(more.length ? [lb.element("details", null, lb.element("summary", null, `and ${lb.format(more.length)} more`), lb.element("ul", null, more.map(item)))] : [])]);
  };

  const proof = (get, head, open) => {
    const at = Object.fromEntries(["step", "rank", "phase", "layer", "index", "source", "source_forward"].map((key) => [key, get(key)]));
    const line = get("command"), op = get("op");
    return lb.element("details", { class: "finding", ...(open ? { open: "" } : {}) }, lb.element("summary", null, lb.element("strong", null, lb.text(lb.kind(get("kind")))), " ", lb.text(head)),
      lb.facts([["proof", get("message")], ["where", place(at)], ["op", has(op) ? `${op}${has(get("forward")) ? `, backward of ${get("forward")}` : ""}` : null], ...sourceFacts(at), ["factor", get("factor")], ["effect", get("effect")], ["see", typeof line === "string" && line ? lb.command(line) : null]]));
  };

  /* The gravest ones one by one, and all of them in a table where there are more. */
  const proofs = (part) => {
    const found = part.result.findings, heads = (part.answer || {}).heads || [];
    if (!lb.isTable(found)) return findings(part.result);
    const list = lb.list(found);
    const nodes = lb.rows(list).slice(0, ONE_BY_ONE).map((i) => proof((key) => list.get(i, key), heads[i] ?? list.get(i, "message"), i === 0));
    const columns = [["kind", "kind"], ["step", "step"], ["rank", "rank"], ["phase", "phase"], ["layer", "layer"], ["op", "op"], ["index", "index"], ["factor", "factor"], ["effect", "effect"], ["message", "proof"], ["command", "see"]];
    return [block("Findings", list.length > ONE_BY_ONE ? [...nodes, lb.table("Every finding", list, columns)] : nodes)];
  };

  /* Where digits go, a table of facts for each kind of row, in the words of the text that `check` prints. */
  const DIGITS = [["rounding", "What costs most digits, each line of code alone"], ["cancellation", "Sums that cancel"], ["updates", "Updates that were absorbed"], ["state", "States of optimizers that underflow"], ["range", "Numbers that left the range of their dtype"], ["headroom", "Headroom of gradients in f16"], ["router", "Choices near a tie"]];
  const DIGIT_COLUMNS = [["layer", "layer"], ["op", "op"], ["dtype", "dtype"], ["digits", "right digits"], ["bits", "bits"], ["percent", "share, %"], ["recent", "in the last step, %"], ["loss", "effect on the loss"], ["logits", "on logits"], ["gradients", "on gradients"], ["line", "line"], ["cure", "cure"], ["message", "what"]];
  const percent = (share) => (typeof share === "number" ? Number((100 * share).toPrecision(3)) : share);
  const digits = (result, again) => {
    if (!lb.isTable(result.digits)) return findings(result, "Where digits go", "digits");
    const all = lb.list(result.digits), known = DIGITS.map(([kind]) => kind);
    const others = [...new Set(lb.rows(all).map((i) => all.get(i, "kind")))].filter((kind) => !known.includes(kind)).map((kind) => [kind, lb.plain(String(kind)).slice(0, LONGEST)]);
    const nodes = [...DIGITS, ...others].flatMap(([kind, title]) => {
      const rows = lb.rows(all).filter((i) => all.get(i, "kind") === kind);
      if (!rows.length) return [];
      const of = (i, key) => { const field = all.get(i, key); return field !== null && typeof field === "object" ? field : {}; };
      const made = (i) => ({ layer: all.get(i, "layer") || "(outside)", ...Object.fromEntries(["op", "dtype", "digits", "bits", "message", "cure"].map((key) => [key, all.get(i, key)])), percent: percent(all.get(i, "share")), recent: percent(all.get(i, "recent")), loss: of(i, "effect").loss, logits: of(i, "effect").logits, gradients: of(i, "effect").gradients, line: sourceLine(all.get(i, "source")) });
      return [lb.element("details", { class: "finding" }, lb.element("summary", null, lb.element("strong", null, lb.text(title)), ` (${lb.format(rows.length)})`), lb.table(title, lb.list(rows.map(made)), DIGIT_COLUMNS))];
    });
    if (nodes.length) nodes[0].setAttribute("open", "");
    return [block("Where digits go", nodes, /--only/.test(again) ? again : `${again} --only digits`)];
  };

  const check = (part) => {
    const r = part.result, again = line(part, USAGE.check), found = lb.isTable(r.findings) ? lb.list(r.findings) : { length: 0 };
    const shows = [...new Set(lb.rows(found).slice(0, ONE_BY_ONE).map((i) => found.get(i, "command")))].filter((one) => typeof one === "string" && one);
    return {
      blocks: [
        ...proofs(part),
        ...(has(r.proven) ? [sentences("Proven", r.proven)] : []),
        ...digits(r, again),
        ...tables(r, [["not_judged", "Not judged, and why", [["what", "what"], ["why", "why"]]]]),
        ...rest(r, ["verdict", "findings", "proven", "digits", "not_judged", "replays"]),
      ],
      commands: [[`What is wrong, what is proven, where digits go${has(r.replays) ? `, by ${lb.format(r.replays)} replays` : ""}`, again], ["Every bit of it as JSON", `${again} --json`], ...shows.map((one) => ["The ops around what was found", one])],
    };
  };

  /* ---- replay ---- */

  const replay = (part) => {
    const r = part.result, again = line(part, USAGE.replay);
    const counts = has(r.verdicts) ? Object.entries(r.verdicts).filter(([, n]) => n > 0) : [];
    return {
      blocks: [
        ...(counts.length ? [block("Ops by verdict", [lb.plotBars({ label: "Ops by verdict. The table below has the numbers.", caption: "", x: "verdict", y: "ops", bars: counts }).figure, lb.table("Ops by verdict", lb.list(counts.map(([verdict, ops]) => ({ verdict, ops }))))], again)] : []),
        ...tables(r, [["worst", "The worst ops"], ["table", "Precision by layer and tensor"], ["loss", "Loss"], ["swaps", "Swaps"], ["effect", "How far the swaps move what leaves the step"], ["opaque_ops", "Ops that nothing here computes"]]),
        ...flips(r),
        ...rest(r, ["mode", "verdict", "verdicts", "bitwise", "compared", "worst", "table", "loss", "swaps", "effect", "opaque_ops", "missing", "routing"]),
      ],
      commands: [["The verdicts", again]],
    };
  };

  /* ---- a receipt, anything else ---- */

  const flat = (value, path = "") => (value !== null && typeof value === "object" && !Array.isArray(value) && !lb.isColumns(value) ? Object.entries(value).flatMap(([key, inner]) => flat(inner, path ? `${path}.${key}` : key)) : [[path, Array.isArray(value) && value.every((entry) => entry === null || typeof entry !== "object") ? value.map(lb.format).join(" ") : lb.isTable(value) ? JSON.stringify(value) : value]]);
  const receipt = (part) => {
    const r = part.result, again = line(part, r.capture ? `lastbit ls --tables ${lb.shellWord(r.capture)}` : USAGE.ls), tables = lb.list(r.tables);
    const of = (i, name) => { const all = tables.get(i, "tables"); return all && has(all[name]) ? all[name] : null; };
    const names = [...new Set(lb.rows(tables).flatMap((i) => Object.keys(tables.get(i, "tables") || {})))];
    const blocks = names.map((name) => {
      const first = of(0, name);
      if (first === null) return null;
      if (typeof first !== "object" || Array.isArray(first) || lb.isColumns(first)) return block(name, lb.value(first), again);
      const others = lb.rows(tables).slice(1).map((i) => [tables.get(i, "rank"), new Map(flat(of(i, name) || {}))]);
      const rows = flat(first).map(([field, value]) => {
        const differing = others.filter(([, table]) => lb.format(table.get(field)) !== lb.format(value)).map(([rank]) => rank);
        return { field, value, ...(others.length ? { "different on ranks": differing.join(", ") } : {}) };
      });
      return block(`${name[0].toUpperCase()}${name.slice(1)} of rank ${lb.format(tables.get(0, "rank"))}`, lb.table(name, lb.list(rows)), again);
    }).filter((one) => one !== null);
    return {
      blocks: [...blocks, ...rest(r, ["capture", "ranks", "steps", "tables"])],
      commands: [["The tables", again]],
    };
  };

  const other = (part) => ({ blocks: rest(part.result, []), commands: [["The same", line(part, `lastbit ${part.command}`)]] });

  lb.misread = [];
  lb.describe = (part) => {
    const describe = { diff, bisect, explain, parity, watch, ranks, audit, check, replay, ls: receipt }[part.command] || other;
    let shown;
    try {
      shown = describe(part);
    } catch (unexpected) {
      lb.misread.push(`${part.name}: ${unexpected}`);
      shown = other(part); /* fields of other types than this command prints: everything is shown as it is */
    }
    const drawn = histograms(part.result);
    if (drawn.length) shown.blocks.push(block("Histograms", lb.element("div", { class: "plots" }, drawn)));
    return shown;
  };
}
