// Numbers as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB"];

export function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < UNITS.length - 1) { bytes /= 1024; unit += 1; }
  return `${Number(bytes.toPrecision(3))} ${UNITS[unit]}`;
}

/** A share in per cent, with two digits below one per cent. */
export function percent(share) {
  if (share === null || share === undefined) return "?";
  return `${(100 * share).toFixed(share < 0.01 ? 2 : 1)} %`;
}

/** Whether bounds lie so far apart that a value without them says too much (as the server judges). */
export const isUncertain = (ratio, low, high) => high - low > Math.max(0.1 * ratio, 0.0005);

/** A miss ratio: as its band where that matters, else as one figure. */
export function ratio(value, low, high) {
  if (value === null || value === undefined) return "not known";
  if (!isUncertain(value, low, high)) return percent(value);
  return `${percent(low).replace(" %", "")}…${percent(high)}`;
}

export function seconds(value) {
  if (value >= 86400) return `${(value / 86400).toFixed(1)} d`;
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  if (value >= 120) return `${(value / 60).toFixed(0)} min`;
  return value >= 0.9995 || value === 0 ? `${value.toFixed(1)} s` : `${(1000 * value).toFixed(1)} ms`;
}

export function count(value) {
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (value >= unit) return `${(value / unit).toFixed(1)} ${name}`;
  return `${Math.round(value)}`;
}

const TIME = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const MINUTE = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });

export const clock = (unix) => TIME.format(new Date(1000 * unix));

/** Labels of a time axis: without seconds where all of them are whole minutes. */
export function clocks(splits) {
  const style = splits.every((unix) => unix % 60 === 0) ? MINUTE : TIME;
  return splits.map((unix) => style.format(new Date(1000 * unix)));
}

/** Ids from here on down are those of phases before a restart that are not known again. */
const EARLIER = -3;

export const phaseName = (id) => (id <= EARLIER ? `earlier phase ${EARLIER - id}` : id < 0 ? "others" : `phase ${id}`);

/** How many bursts of a phase come from the store, and how old the latest is; empty if none does. */
export const stored = (phase) =>
  (phase.stored_bursts > 0 ? `${phase.stored_bursts} from the store, ${seconds(phase.stored_age_seconds ?? 0)} old` : "");
