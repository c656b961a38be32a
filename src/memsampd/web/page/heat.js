// The heat map: miss ratio over time and cache size, and below it which phases ran.

import * as colours from "./colours.js";
import * as format from "./format.js";
import { isStored } from "./tables.js";

const HEIGHT = 320;
const BAR_OCTAVES = 2.2; // room for the phase bar below the smallest size
const BAR_GAP = 0.35;

export class HeatMap {
  /** @param {HTMLElement} place  @param {(text: string) => void} say */
  constructor(place, say) {
    this.place = place;
    this.say = say;
    this.history = null;
    this.picked = null;
    this.plot = null;
    new ResizeObserver(() => this.fit()).observe(place);
    place.addEventListener("keydown", (event) => this.step(event));
  }

  /** Show a document of /windows; `picked` is a phase to stress, or null. */
  show(history, picked) {
    const isOther = this.history?.target !== history.target;
    this.history = history;
    this.picked = picked;
    this.octaves = history.sizes_bytes.map(Math.log2);
    if (isOther || this.plot === null) this.build();
    else this.plot.setData(this.data(), true);
    this.place.setAttribute("aria-label", this.summary());
  }

  /** Draw anew, in the colours of the theme. */
  build() {
    this.plot?.destroy();
    this.plot = null;
    if (this.history === null) return;
    const axis = { stroke: colours.variable("muted"), grid: { show: false }, ticks: { stroke: colours.variable("rule") } };
    this.plot = new uPlot({
      width: Math.max(this.place.clientWidth, 240), height: HEIGHT, legend: { show: false },
      scales: { x: { time: true, range: () => this.span() }, y: { range: () => this.reach() } },
      axes: [{ ...axis, size: 34, space: 80, values: (_, splits) => format.clocks(splits) }, { ...axis, size: 62, splits: () => this.splits(),
        values: (_, splits) => splits.map((octave) => format.size(2 ** octave)) }],
      series: [{}, { paths: () => null, points: { show: false } }],
      cursor: { y: true, drag: { x: false, y: false }, points: { show: false } },
      hooks: { draw: [(plot) => this.draw(plot)], setCursor: [(plot) => this.tell(plot)] },
    }, this.data(), this.place);
  }

  data() {
    const starts = this.history.start_unix_seconds;
    return [starts, starts.map(() => null)];
  }

  span() {
    const { start_unix_seconds: starts, step_seconds: step, until_unix_seconds: until } = this.history;
    const first = starts.length ? starts[0] : until - 10;
    return [first, Math.max((starts.at(-1) ?? first) + step, first + 10)];
  }

  reach() {
    return [this.octaves[0] - 0.5 - BAR_OCTAVES, this.octaves.at(-1) + 0.5];
  }

  splits() {
    const [first, last] = [this.octaves[0], this.octaves.at(-1)];
    const found = [];
    for (let octave = Math.ceil(first); octave <= last; octave += 2) found.push(octave);
    return found;
  }

  fit() {
    if (this.plot !== null && this.place.clientWidth > 0 && this.place.clientWidth !== this.plot.width)
      this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }

  /** Edges of the row of a size, in octaves. */
  edges(row) {
    const here = this.octaves[row];
    const below = row > 0 ? (this.octaves[row - 1] + here) / 2 : here - 0.5;
    const above = row + 1 < this.octaves.length ? (this.octaves[row + 1] + here) / 2 : here + 0.5;
    return [below, above];
  }

  draw(plot) {
    const pen = plot.ctx;
    const at = (value, scale) => Math.round(plot.valToPos(value, scale, true));
    const unsure = colours.hatch(pen, uPlot.pxRatio);
    pen.save();
    pen.beginPath();
    pen.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    pen.clip();
    const rows = this.octaves.map((_, row) => this.edges(row).map((edge) => at(edge, "y")));
    const bar = [this.octaves[0] - 0.5 - BAR_GAP, this.octaves[0] - 0.5 - BAR_OCTAVES].map((edge) => at(edge, "y"));
    this.history.start_unix_seconds.forEach((start, column) => {
      const left = at(start, "x");
      const width = Math.max(at(start + this.history.step_seconds, "x") - left, 1);
      this.drawColumn(pen, column, left, width, rows, unsure);
      this.drawPhases(pen, column, left, width, bar);
    });
    this.drawRestart(pen, plot.bbox, at);
    pen.restore();
  }

  /** A broken line where what comes from the store ends. */
  drawRestart(pen, box, at) {
    const until = this.history.stored_until_unix_seconds;
    if (until === null) return;
    pen.strokeStyle = colours.variable("ink");
    pen.lineWidth = uPlot.pxRatio;
    pen.setLineDash([4 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
    pen.beginPath();
    pen.moveTo(at(until, "x"), box.top);
    pen.lineTo(at(until, "x"), box.top + box.height);
    pen.stroke();
    pen.setLineDash([]);
  }

  drawColumn(pen, column, left, width, rows, unsure) {
    const { miss_ratio: ratios, low, high, cpu_seconds: used } = this.history;
    if (!(used[column] > 0)) return;
    const known = ratios[column];
    if (known === null) {
      pen.fillStyle = colours.variable("blank");
      pen.fillRect(left, rows.at(-1)[1], width, rows[0][0] - rows.at(-1)[1]);
      return;
    }
    rows.forEach(([bottom, top], row) => {
      pen.fillStyle = colours.heat(known[row]);
      pen.fillRect(left, top, width, bottom - top);
      if (colours.areApart(low[column][row], high[column][row])) {
        pen.fillStyle = unsure;
        pen.fillRect(left, top, width, bottom - top);
      }
    });
  }

  drawPhases(pen, column, left, width, [top, bottom]) {
    const used = this.history.cpu_seconds[column];
    if (!(used > 0)) return;
    let y = top;
    this.history.phases.forEach((id, index) => {
      const height = ((bottom - top) * this.history.phase_cpu_seconds[column][index]) / used;
      pen.globalAlpha = this.picked === null || this.picked === id ? 1 : 0.25;
      pen.fillStyle = colours.phase(id);
      pen.fillRect(left, y, width, height);
      y += height;
    });
    pen.globalAlpha = 1;
  }

  /** Move the cursor by keyboard: left and right in time, up and down in size. */
  step(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const move = moves[event.key];
    const columns = this.history?.start_unix_seconds.length ?? 0;
    if (move === undefined || columns === 0) return;
    event.preventDefault();
    const keep = (value, limit) => Math.min(Math.max(value, 0), limit - 1);
    const [column, row] = this.at ?? [columns, 0];
    this.at = [keep(column + move[0], columns), keep(row + move[1], this.octaves.length)];
    const middle = this.history.start_unix_seconds[this.at[0]] + this.history.step_seconds / 2;
    this.plot.setCursor({ left: this.plot.valToPos(middle, "x"), top: this.plot.valToPos(this.octaves[this.at[1]], "y") });
  }

  tell(plot) {
    const { left, top } = plot.cursor;
    if (left === undefined || left < 0) return;
    const [time, octave] = [plot.posToVal(left, "x"), plot.posToVal(top, "y")];
    const starts = this.history.start_unix_seconds;
    const column = starts.findLastIndex((start) => start <= time);
    if (column < 0 || time > starts[column] + this.history.step_seconds) return this.say("");
    let row = this.octaves.findIndex((_, each) => octave <= this.edges(each)[1]);
    if (row < 0) row = this.octaves.length - 1;
    this.at = [column, row];
    this.say(this.words(column, row));
  }

  words(column, row) {
    const { history } = this;
    const when = format.clock(history.start_unix_seconds[column]) + (isStored(history, column) ? " (from the store)" : "");
    const used = history.cpu_seconds[column];
    if (!(used > 0)) return `${when}: idle`;
    const known = history.miss_ratio[column];
    const ratio = known === null ? "no curve known"
      : `${format.size(history.sizes_bytes[row])}: ${format.ratio(known[row], history.low[column][row], history.high[column][row])} of accesses miss`;
    const ran = history.phases
      .map((id, index) => [history.phase_cpu_seconds[column][index] / used, id])
      .filter(([share]) => share >= 0.005)
      .sort((one, other) => other[0] - one[0])
      .map(([share, id]) => `${format.phaseName(id)} ${Math.round(100 * share)} %`);
    return `${when}, ${ratio}; ${ran.join(", ")}`;
  }

  summary() {
    const { history } = this;
    const columns = history.start_unix_seconds.length;
    if (columns === 0) return "Heat map: nothing has been seen yet";
    return `Heat map of miss ratios by time and cache size, ${columns} steps of ${format.seconds(history.step_seconds)}, `
      + `phases ${history.phases.filter((id) => id >= 0).join(", ") || "none"}. Arrow keys read it; a table follows.`;
  }
}
