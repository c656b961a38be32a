// Miss ratio against cache size: the picked phase with its bounds, the others faintly.

import * as colours from "./colours.js";
import * as format from "./format.js";

const HEIGHT = 300;
export const WHOLE_RUN = "run";

/** The lists of the picked phase or of the whole run. */
export const chosen = (curves, picked) =>
  picked === WHOLE_RUN ? curves.whole_run : curves.phases.find((phase) => phase.id === picked) ?? curves.whole_run;

export const nameOf = (picked) => (picked === WHOLE_RUN ? "whole run" : format.phaseName(picked));
export const colourOf = (picked) => (picked === WHOLE_RUN ? colours.variable("ink") : colours.phase(picked));

export class CurvePlot {
  /** @param {HTMLElement} place  @param {(text: string) => void} say */
  constructor(place, say) {
    this.place = place;
    this.say = say;
    this.curves = null;
    this.picked = WHOLE_RUN;
    this.plot = null;
    new ResizeObserver(() => this.fit()).observe(place);
    place.addEventListener("keydown", (event) => this.step(event));
  }

  /** Show a document of /curves. */
  show(curves, picked) {
    const key = (shown) => shown && [shown.target, ...shown.phases.map((phase) => phase.id), ...shown.sizes_bytes].join();
    const isOther = key(this.curves) !== key(curves) || this.picked !== picked;
    this.curves = curves;
    this.picked = picked;
    if (isOther || this.plot === null) this.build();
    else this.plot.setData(this.data());
    this.place.setAttribute("aria-label", this.summary());
  }

  /** Draw anew, in the colours of the theme. */
  build() {
    this.plot?.destroy();
    this.plot = null;
    if (this.curves === null) return;
    const main = colourOf(this.picked);
    const faint = (id) => ({ stroke: `${colours.phase(id)}b0`, width: 1.2, points: { show: false } });
    const axis = { stroke: colours.variable("muted"), grid: { stroke: colours.variable("rule"), width: 1 }, ticks: { stroke: colours.variable("rule") } };
    this.plot = new uPlot({
      width: Math.max(this.place.clientWidth, 240), height: HEIGHT, legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, Math.min(1, Math.max(1.1 * (most ?? 0), 0.01))] } },
      axes: [
        { ...axis, size: 34, splits: () => this.splits(), values: (_, splits) => splits.map((octave) => format.size(2 ** octave)) },
        { ...axis, size: 58, values: (_, splits) => splits.map((share) => `${Number((100 * share).toPrecision(3))} %`) },
      ],
      series: [
        {},
        { stroke: `${colourOf(this.picked) + "66"}`, width: 1, points: { show: false } },
        { stroke: `${colourOf(this.picked) + "66"}`, width: 1, points: { show: false } },
        ...this.others().map((phase) => faint(phase.id)),
        { stroke: main, width: 2.5, points: { show: false } },
      ],
      bands: [{ series: [1, 2], fill: `${main}2e` }],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      hooks: { drawAxes: [(plot) => this.drawCaches(plot)], setCursor: [(plot) => this.tell(plot.cursor.idx)] },
    }, this.data(), this.place);
  }

  others() {
    return this.curves.phases.filter((phase) => phase.id !== this.picked);
  }

  data() {
    const { sizes_bytes: sizes } = this.curves;
    const list = (values) => values ?? sizes.map(() => null);
    const main = chosen(this.curves, this.picked);
    return [sizes.map(Math.log2), list(main.high), list(main.low),
      ...this.others().map((phase) => list(phase.miss_ratio)), list(main.miss_ratio)];
  }

  splits() {
    const octaves = this.curves.sizes_bytes.map(Math.log2);
    const every = this.place.clientWidth < 520 ? 4 : 2;
    const found = [];
    for (let octave = Math.ceil(octaves[0]); octave <= octaves.at(-1); octave += every) found.push(octave);
    return found;
  }

  fit() {
    if (this.plot !== null && this.place.clientWidth > 0 && this.place.clientWidth !== this.plot.width)
      this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }

  /** This machine's caches, as broken lines with their names. */
  drawCaches(plot) {
    const pen = plot.ctx;
    const scale = uPlot.pxRatio;
    pen.save();
    pen.setLineDash([4 * scale, 4 * scale]);
    pen.strokeStyle = pen.fillStyle = colours.variable("muted");
    pen.lineWidth = scale;
    pen.font = `${11 * scale}px system-ui, sans-serif`;
    for (const [name, bytes] of Object.entries(this.curves.cache_sizes_bytes)) {
      const x = plot.valToPos(Math.log2(bytes), "x", true);
      if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
      pen.beginPath();
      pen.moveTo(x, plot.bbox.top);
      pen.lineTo(x, plot.bbox.top + plot.bbox.height);
      pen.stroke();
      const isLast = x + 40 * scale > plot.bbox.left + plot.bbox.width;
      pen.textAlign = isLast ? "right" : "left";
      pen.fillText(name, x + (isLast ? -4 : 4) * scale, plot.bbox.top + 12 * scale);
    }
    pen.restore();
  }

  step(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move === undefined || this.curves === null) return;
    event.preventDefault();
    const last = this.curves.sizes_bytes.length - 1;
    this.at = Math.min(Math.max((this.at ?? -1) + move, 0), last);
    this.plot.setCursor({ left: this.plot.valToPos(Math.log2(this.curves.sizes_bytes[this.at]), "x"), top: 10 });
  }

  tell(row) {
    if (row === null || row === undefined) return;
    this.at = row;
    const { miss_ratio: ratios, low, high } = chosen(this.curves, this.picked);
    const ratio = ratios === null ? "not known" : format.ratio(ratios[row], low[row], high[row]);
    this.say(`${nameOf(this.picked)}, ${format.size(this.curves.sizes_bytes[row])}: ${ratio}${ratios === null ? "" : " of accesses miss"}`);
  }

  summary() {
    const { miss_ratio: ratios } = chosen(this.curves, this.picked);
    const name = nameOf(this.picked);
    if (ratios === null) return `Curve of the ${name}: not known yet, no burst has seen it`;
    const sizes = this.curves.sizes_bytes;
    return `Miss-ratio curve of the ${name}: from ${format.percent(ratios[0])} at ${format.size(sizes[0])} `
      + `to ${format.percent(ratios.at(-1))} at ${format.size(sizes.at(-1))}. Arrow keys read it; a table follows.`;
  }
}
