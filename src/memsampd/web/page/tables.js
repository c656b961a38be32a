// Tables: the alternative of each figure, and the phases.

import * as format from "./format.js";
import { chosen, nameOf } from "./curves.js";

/** Make an element with text or children; text is never read as HTML. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Replace the rows of a table; the first cell of a row is its heading. */
export function fill(table, caption, header, rows) {
  const head = make("tr", {}, ...header.map((text) => make("th", { scope: "col" }, text)));
  const body = rows.map(([first, ...rest]) =>
    make("tr", {}, make("th", { scope: "row" }, first), ...rest.map((text) => make("td", {}, text))));
  table.replaceChildren(make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
}

const MOST_ROWS = 60;

/** Whether a column is of the time before a restart of memsampd. */
export const isStored = (history, column) => history.start_unix_seconds[column] < (history.stored_until_unix_seconds ?? -Infinity);

/** The heat map at this machine's caches, newest first. */
export function heatTable(table, history) {
  const caches = Object.entries(history.cache_sizes_bytes).map(([name, bytes]) => [name, nearest(history.sizes_bytes, bytes)]);
  const rows = history.start_unix_seconds.map((start, column) => {
    const known = history.miss_ratio[column];
    const used = history.cpu_seconds[column];
    const shares = history.phase_cpu_seconds[column];
    const main = history.phases[shares.indexOf(Math.max(...shares))];
    return [
      isStored(history, column) ? `${format.clock(start)} (from the store)` : format.clock(start), used > 0 ? format.phaseName(main) : "idle", format.seconds(used),
      ...caches.map(([, row]) => (known === null ? "not known" : format.ratio(known[row], history.low[column][row], history.high[column][row]))),
    ];
  });
  const shown = rows.reverse().slice(0, MOST_ROWS);
  const rest = rows.length > shown.length ? `, the newest ${shown.length} of ${rows.length} steps (all are in the CSV)` : "";
  fill(table, `Steps of ${format.seconds(history.step_seconds)}, newest first${rest}`,
    ["from", "mostly", "CPU time", ...caches.map(([name]) => `misses in ${name}`)], shown);
}

function nearest(sizes, bytes) {
  const far = sizes.map((size) => Math.abs(Math.log2(size / bytes)));
  return far.indexOf(Math.min(...far));
}

export function curveTable(table, curves, picked) {
  const { miss_ratio: ratios, low, high } = chosen(curves, picked);
  fill(table, `Misses per access, ${nameOf(picked)}`, ["cache", "estimate", "at least", "at most"],
    curves.sizes_bytes.map((bytes, row) => [
      format.size(bytes), ...[ratios, low, high].map((list) => format.percent(list?.[row]))]));
}

export function phaseTable(table, found) {
  const caches = found.phases[0]?.caches.map((cache) => cache.name) ?? [];
  const hasCycles = found.phases.some((phase) => phase.cycles_per_instruction !== null);
  fill(table, "All phases, heaviest first",
    ["phase", "share of accesses", "CPU time", "bursts", "accesses seen", "accesses/s", ...(hasCycles ? ["cycles per instruction"] : []), ...caches.map((name) => `misses in ${name}`)],
    [...found.phases].sort((one, other) => other.weight - one.weight).map((phase) => [
      `${phase.id}${phase.id === found.phase ? " (now)" : ""}`,
      format.percent(phase.weight), format.seconds(phase.cpu_seconds),
      [`${phase.bursts}`, format.stored(phase)].filter(Boolean).join("; "), format.count(phase.sampled_accesses),
      phase.accesses_per_cpu_second === null ? "not known" : format.count(phase.accesses_per_cpu_second),
      ...(hasCycles ? [phase.cycles_per_instruction?.toFixed(2) ?? "not known"] : []),
      ...phase.caches.map((cache) => format.ratio(cache.miss_ratio, cache.low, cache.high))]));
}
