"use strict";
/* The results, and how their lists, numbers and words are read. Everything of the page hangs on `lb`. */
const lb = { parts: JSON.parse(document.getElementById("results").textContent) };

/* A list of objects, or the columns that column_table.h makes of a long one: length, of (before rows were left out), keys, get(row, key). */
lb.list = (value) => {
  if (Array.isArray(value)) {
    const rows = value.filter((row) => row !== null && typeof row === "object" && !Array.isArray(row));
    const keys = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    return { length: rows.length, of: rows.length, keys, get: (i, key) => (Object.hasOwn(rows[i], key) ? rows[i][key] : null) };
  }
  if (!lb.isColumns(value)) return { length: 0, of: 0, keys: [], get: () => null };
  const columns = new Map(Object.entries(value.columns));
  const get = (i, key) => {
    const column = columns.get(key);
    if (column === undefined) return null;
    if (Array.isArray(column)) return column[i];
    return column.at[i] < 0 ? null : column.words[column.at[i]];
  };
  return { length: value.rows, of: value.of, keys: [...columns.keys()], get };
};

lb.isColumns = (value) =>
  value !== null && typeof value === "object" && Number.isInteger(value.rows) && Number.isInteger(value.of) && typeof value.columns === "object" && value.columns !== null;

lb.isTable = (value) =>
  lb.isColumns(value) || (Array.isArray(value) && value.length > 0 && value.every((row) => row !== null && typeof row === "object" && !Array.isArray(row)));

lb.rows = (list) => Array.from({ length: list.length }, (_, i) => i);

/* Rows of a list that a test keeps. */
lb.where = (list, keep) => {
  const rows = lb.rows(list).filter((i) => keep((key) => list.get(i, key)));
  return { length: rows.length, of: rows.length, keys: list.keys, get: (i, key) => list.get(rows[i], key) };
};

/* The same rows, those of the smallest number first; those of one number stay in their order. */
lb.sorted = (list, numberOf) => {
  const rows = lb.rows(list).map((i) => [numberOf((key) => list.get(i, key)), i]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, i]) => i);
  return { ...list, get: (i, key) => list.get(rows[i], key) };
};

/* NaN: not told. Numbers that JSON cannot hold are words. */
lb.number = (value) => (typeof value === "number" ? value : value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN);

/* Control characters, those that turn the direction of a text, and those that are invisible, as include/lastbit/text.h has them: a name is not to look like another. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;
lb.plain = (text) => text.replace(HIDDEN, (letter) => {
  const code = letter.codePointAt(0);
  return code < 0x80 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u{${code.toString(16)}}`;
});

lb.format = (value) => {
  if (value === null || value === undefined || value === "") return "–";
  if (value === "inf" || value === "-inf") return value === "inf" ? "∞" : "−∞";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return lb.plain(String(value));
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US").replaceAll(",", "\u202f");
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
};

/* Words of verdicts from best to worst, as lb_verdict_words; the tone says how to take one, the letter stands for it in the map. */
lb.verdicts = ["identical", "reordered", "noise", "rounding", "swapped", "undecided", "missing", "diverged"];
lb.letters = ["i", "o", "n", "r", "s", "u", "m", "D"];
lb.colours = ["#7fb98a", "#9fc5e8", "#c9c9c9", "#f2d16b", "#8fd0cf", "#c3a6e0", "#a58bd6", "#d1495b"];

const TONES = new Map();
for (const word of "identical clean pass passed same cured ok cast good".split(" ")) TONES.set(word, "good");
for (const word of "reordered noise rounding swapped warning cleared none".split(" ")) TONES.set(word, "warn");
for (const word of "diverged found fail failed fails-same critical differ differs different unexplained".split(" ")) TONES.set(word, "bad");
for (const [word, tone] of [["closest", "good"], ["like the closest", "good"], ["further apart", "bad"]]) TONES.set(word, tone);
lb.tone = (word) => TONES.get(String(word)) || "unknown";
lb.signs = { good: "✓", warn: "≈", bad: "✗", unknown: "?" };
