// Figures as files.

import * as colours from "./colours.js";
import { isStored } from "./tables.js";

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const fileName = (command, pid, what, kind) =>
  `memsampd-${command.replace(/[^\w.-]+/g, "_")}-${pid}-${what}.${kind}`;

/** Save a plot with its title, as it is on the screen. */
export function savePng(target, what, plot, title) {
  const scale = uPlot.pxRatio;
  const drawn = plot.ctx.canvas;
  const head = Math.round(40 * scale);
  const canvas = document.createElement("canvas");
  canvas.width = drawn.width;
  canvas.height = drawn.height + head;
  const pen = canvas.getContext("2d");
  pen.fillStyle = colours.variable("card");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = colours.variable("ink");
  pen.font = `600 ${15 * scale}px system-ui, sans-serif`;
  pen.fillText(title, 12 * scale, 25 * scale);
  pen.drawImage(drawn, 0, head);
  canvas.toBlob((blob) => save(fileName(target.command, target.pid, what, "png"), blob), "image/png");
}

function saveCsv(target, what, header, rows) {
  const text = [header, ...rows].map((row) => row.map((cell) => cell ?? "").join(",")).join("\n");
  save(fileName(target.command, target.pid, what, "csv"), new Blob([`${text}\n`], { type: "text/csv" }));
}

/** One row a step and size; empty where nothing is known. */
export function saveHistory(target, history) {
  const rows = history.start_unix_seconds.flatMap((start, column) =>
    history.sizes_bytes.map((bytes, row) => {
      const ran = history.phase_cpu_seconds[column];
      const main = history.cpu_seconds[column] > 0 ? history.phases[ran.indexOf(Math.max(...ran))] : null;
      return [start, history.step_seconds, history.cpu_seconds[column], history.unknown_cpu_seconds[column], main, isStored(history, column) ? 1 : 0, bytes,
        history.miss_ratio[column]?.[row], history.low[column]?.[row], history.high[column]?.[row]];
    }));
  saveCsv(target, "windows",
    ["start_unix_seconds", "step_seconds", "cpu_seconds", "unknown_cpu_seconds", "main_phase", "is_stored", "size_bytes", "miss_ratio", "low", "high"], rows);
}

/** One row a phase and size, the whole run first. */
export function saveCurves(target, curves) {
  const all = [["whole run", curves.whole_run], ...curves.phases.map((phase) => [phase.id, phase])];
  const rows = all.flatMap(([name, curve]) => curves.sizes_bytes.map((bytes, row) =>
    [name, bytes, curve.miss_ratio?.[row], curve.low?.[row], curve.high?.[row]]));
  saveCsv(target, "curves", ["phase", "size_bytes", "miss_ratio", "low", "high"], rows);
}
