// Colours: phases keep theirs, the heat map's ramp follows the theme.

const PHASES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a500", "#7d6bd0"];
// Of light phases together, and in turn of those before a restart that are not known again.
const OTHERS = ["#7d838a", "#9aa0a6", "#b9bec4"];
// From what hardly misses, which recedes into the ground, to what always does.
const RAMPS = {
  light: ["#f3f6fb", "#c6dcf0", "#84b3dc", "#6f7fc4", "#8b4a9c", "#9c1d5f", "#5c0632"],
  dark: ["#1b2130", "#22456b", "#3d6fa8", "#8367b8", "#cf5f96", "#f79a6b", "#ffe49a"],
};

export const phase = (id) => (id < 0 ? OTHERS[-id % OTHERS.length] : PHASES[id % PHASES.length]);
export const theme = () => document.documentElement.dataset.theme;
export const variable = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function mix(low, high, share) {
  const parts = [1, 3, 5].map((at) => {
    const [from, to] = [low, high].map((colour) => parseInt(colour.slice(at, at + 2), 16));
    return Math.round(from + (to - from) * share);
  });
  return `rgb(${parts.join(" ")})`;
}

/** Colours of miss ratios in 256 steps of their square root: small ones differ visibly, too. */
function steps(ramp) {
  return Array.from({ length: 256 }, (_, step) => {
    const at = (step / 255) * (ramp.length - 1);
    const below = Math.min(Math.floor(at), ramp.length - 2);
    return mix(ramp[below], ramp[below + 1], at - below);
  });
}

const TABLES = { light: steps(RAMPS.light), dark: steps(RAMPS.dark) };

export const heat = (ratio) =>
  TABLES[theme()][Math.min(255, Math.max(0, Math.round(255 * Math.sqrt(ratio))))];

/** Whether the colours of bounds lie so far apart that the colour between them says too much. */
export const areApart = (low, high) => Math.sqrt(high) - Math.sqrt(low) > 0.2;

/** Draw the legend of the ramp. */
export function drawRamp(canvas) {
  const pen = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x += 1) {
    pen.fillStyle = heat((x / (canvas.width - 1)) ** 2);
    pen.fillRect(x, 0, 1, canvas.height);
  }
}

/** A pattern of oblique lines, for what is not known exactly. */
export function hatch(pen, scale) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(6 * scale);
  const inner = tile.getContext("2d");
  inner.strokeStyle = variable("hatch");
  inner.lineWidth = scale;
  inner.beginPath();
  for (const shift of [-tile.width, 0, tile.width]) {
    inner.moveTo(shift, tile.height);
    inner.lineTo(shift + tile.width, 0);
  }
  inner.stroke();
  return pen.createPattern(tile, "repeat");
}
