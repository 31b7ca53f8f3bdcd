"use strict";
/* What the page is built of. Texts of results become text nodes and attribute values here, and never markup. */

lb.element = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) node.setAttribute(name, value);
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
};

let lastId = 0;
lb.freshId = (stem) => `${stem}-${++lastId}`;

/* A text of a result, isolated from the direction of what stands around it; one longer than `most` can be opened. */
lb.text = (value, most = 160) => {
  const text = lb.format(value);
  const SHOWN = 160;
  if (text.length <= most) return lb.element("bdi", null, text);
  const start = Array.from(text.slice(0, SHOWN)).slice(0, -1).join("");
  return lb.element("details", null, lb.element("summary", null, lb.element("bdi", null, `${start}…`)), lb.element("bdi", null, text));
};

lb.word = (word) => {
  const tone = lb.tone(word);
  return lb.element("span", { class: `tone ${tone}` }, `${lb.signs[tone]} `, lb.text(word));
};

/* Kinds of findings are words of a program; these say little to a person. */
const KINDS = { noop: "does nothing", filter: "sampling filter (top-k, top-p)", nonfinite: "not finite" };
lb.kind = (kind) => (typeof kind === "string" ? KINDS[kind] || kind.replaceAll("_", " ") : kind);

const WORDS = new Set("verdict local inherited outcome level cause".split(" "));
lb.cell = (key, value) => {
  if (WORDS.has(key) && typeof value === "string" && value) return lb.word(value);
  if (value !== null && typeof value === "object") return lb.value(value, 1);
  return lb.text(key === "kind" ? lb.kind(value) : value);
};

/* A word of a POSIX shell, quoted where it needs quotes. */
lb.shellWord = (text) => (/^[A-Za-z0-9_\-./=:,@%+]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);

/* A command, and a button that copies it. */
lb.command = (line) => lb.copied(lb.element("code", null, lb.plain(line)), line);
lb.copied = (code, line) => {
  const button = lb.element("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    let said = "Selected";
    try {
      await navigator.clipboard.writeText(line);
      said = "Copied";
    } catch (refused) {
      /* selected is what can be done */
    }
    button.textContent = said;
  });
  return lb.element("div", { class: "command" }, code, button);
};

lb.facts = (pairs) =>
  lb.element("dl", null, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [lb.element("dt", null, name), lb.element("dd", null, value instanceof Node ? value : typeof value === "string" && !WORDS.has(name) ? lb.text(value, 1000) : lb.cell(name, value))]));

/* Any value: what no section knows is shown by this. */
lb.value = (value, depth = 0) => {
  if (value === null || typeof value !== "object") return lb.text(value);
  if (lb.isTable(value)) return depth < 3 ? lb.table("", lb.list(value)) : lb.text(JSON.stringify(value));
  if (Array.isArray(value)) return lb.text(value.map((entry) => (entry !== null && typeof entry === "object" ? JSON.stringify(entry) : lb.format(entry))).join(", "));
  if (depth >= 5) return lb.text(JSON.stringify(value));
  return lb.element("dl", null, Object.entries(value).flatMap(([name, inner]) => [lb.element("dt", null, lb.text(name)), lb.element("dd", null, lb.value(inner, depth + 1))]));
};

lb.select = (label, choices, onChange) => {
  const select = lb.element("select", null, choices.map(([value, text]) => lb.element("option", { value }, text)));
  select.addEventListener("change", () => onChange(select.value));
  return lb.element("label", null, `${label} `, select);
};

/* ---- tables: a page of rows at a time, sorted and filtered by buttons and fields ---- */

const PAGE = 50, PRINTED = 1000;

/* `columns`: [key, heading] in their order; by default every key. Those without any value are left out. */
lb.table = (caption, list, columns) => {
  const told = (value) => value !== null && value !== undefined && value !== "";
  const shown = (columns || list.keys.map((key) => [key, key.replaceAll("_", " ")])).filter(([key], i) => list.keys.includes(key) && (i === 0 || lb.rows(list).some((row) => told(list.get(row, key)))));
  const state = { rows: lb.rows(list), first: 0, size: PAGE, key: null, up: true, words: "" };
  const body = lb.element("tbody"), status = lb.element("span", { role: "status" });
  const [back, on] = ["Previous rows", "Next rows"].map((text) => lb.element("button", { type: "button" }, text));
  const heads = shown.map(([key, heading]) => {
    const button = lb.element("button", { type: "button", title: "Sort by this column" }, heading);
    const head = lb.element("th", { scope: "col", "aria-sort": "none" }, button);
    button.addEventListener("click", () => {
      state.up = state.key === key ? !state.up : true;
      state.key = key;
      heads.forEach((other) => other.setAttribute("aria-sort", other === head ? (state.up ? "ascending" : "descending") : "none"));
      arrange();
    });
    return head;
  });

  const compare = (a, b) => {
    const [x, y] = [list.get(a, state.key), list.get(b, state.key)];
    const [u, v] = [lb.number(x), lb.number(y)];
    const [p, q] = [lb.verdicts.indexOf(x), lb.verdicts.indexOf(y)];
    let order = p >= 0 && q >= 0 ? p - q : u === u && v === v ? u - v : u === u ? -1 : v === v ? 1 : String(x ?? "").localeCompare(String(y ?? ""), "en", { numeric: true });
    if (order !== order) order = 0;
    return state.up ? order : -order;
  };

  const row = (i) =>
    lb.element("tr", null, shown.map(([key], column) => {
      const value = list.get(i, key);
      if (column === 0) return lb.element("th", { scope: "row" }, lb.cell(key, value));
      return lb.element("td", { class: lb.number(value) === lb.number(value) ? "number" : null }, lb.cell(key, value));
    }));

  const draw = () => {
    const last = Math.min(state.first + state.size, state.rows.length);
    body.replaceChildren(...state.rows.slice(state.first, last).map(row));
    const left = list.of > list.length ? `; ${lb.format(list.of - list.length)} of lesser weight are left out of this page` : "";
    status.textContent = state.rows.length ? `rows ${lb.format(state.first + 1)}–${lb.format(last)} of ${lb.format(state.rows.length)}${left}` : "no row";
    back.disabled = state.first === 0;
    on.disabled = last >= state.rows.length;
  };

  const arrange = () => {
    const words = state.words.toLowerCase();
    state.rows = lb.rows(list).filter((i) => !words || shown.some(([key]) => String(list.get(i, key) ?? "").toLowerCase().includes(words)));
    if (state.key !== null) state.rows.sort(compare);
    state.first = 0;
    draw();
  };

  const move = (by) => {
    state.first = Math.max(0, state.first + by * state.size);
    draw();
  };
  back.addEventListener("click", () => move(-1));
  on.addEventListener("click", () => move(1));
  const filter = lb.element("input", { type: "search", size: "18" });
  filter.addEventListener("input", () => {
    state.words = filter.value;
    arrange();
  });
  const sizes = lb.select("Rows a page", [[50, "50"], [200, "200"], [1000, "1000"], [list.length, "all"]], (size) => {
    state.size = Number(size);
    state.first = 0;
    draw();
  });
  lb.beforePrint.push(() => {
    const size = state.size;
    state.size = Math.max(size, PRINTED);
    draw();
    return () => {
      state.size = size;
      draw();
    };
  });
  draw();
  const table = lb.element("table", null, caption ? lb.element("caption", null, caption) : null, lb.element("thead", null, lb.element("tr", null, heads)), body);
  const scroll = lb.element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "table" }, table);
  const many = list.length > 10;
  const paged = list.length > PAGE;
  const controls = lb.element("div", { class: "controls" }, many ? lb.element("label", null, "Filter ", filter) : null, paged ? sizes : null, paged ? back : null, paged ? on : null, status);
  return lb.element("div", { class: "table" }, many || list.of > list.length ? controls : null, scroll);
};

/* Each gets ready for paper and returns what undoes it. */
lb.beforePrint = [];
