// The page: which target and phase are picked, and when what is fetched.

import * as api from "./api.js";
import * as colours from "./colours.js";
import { CurvePlot, WHOLE_RUN, colourOf, nameOf } from "./curves.js";
import * as exporting from "./exporting.js";
import * as format from "./format.js";
import { HeatMap } from "./heat.js";
import { curveTable, heatTable, make, phaseTable } from "./tables.js";

const EVERY_MS = 2000;
const SLOW_EVERY_MS = 10_000; // for long ranges, whose steps are long
const PIXELS_A_POINT = 3;
const OLD_SECONDS = 60; // a daemon tells something every few seconds, and so does a session that is not over
const THEMES = ["system", "light", "dark"];

const $ = (id) => document.getElementById(id);
const state = { targets: [], node: null, id: null, picked: WHOLE_RUN, phases: null, curves: null, history: null, drawn: {} };
const heat = new HeatMap($("heat"), (text) => { $("heat-readout").textContent = text; });
const curvePlot = new CurvePlot($("curves"), (text) => { $("curves-readout").textContent = text; });
const selected = () => state.targets.find((target) => target.target === state.id);

// --- the list of targets

function cacheText(cache) {
  return cache === undefined ? "" : format.ratio(cache.miss_ratio, cache.low, cache.high).replace("not known", "?");
}

function condition(target) {
  if (!target.alive) return "ended";
  if (!target.attached) return "let go";
  if (target.idle) return `idle ${format.seconds(target.idle_seconds)}`;
  return target.phase === null ? "no window yet" : `phase ${target.phase}`;
}

function listItem(target) {
  const last = target.caches_now.at(-1);
  return make("li", {}, make("a", { href: `#${target.target}`, "aria-current": target.target === state.id ? "true" : null },
    make("span", { class: "row" }, make("span", { class: "name" }, target.command), " ", make("span", { class: "ratio" }, cacheText(last))),
    " ", make("span", { class: "row small muted" }, make("span", {}, `pid ${target.pid} · ${condition(target)}`), " ",
      make("span", {}, last && last.miss_ratio !== null ? `miss ${last.name}` : ""))));
}

function drawList() {
  const wanted = $("filter").value.trim().toLowerCase();
  const shown = state.targets.filter((target) => `${target.command} ${target.pid}`.toLowerCase().includes(wanted));
  const focused = document.activeElement?.closest?.("#targets a")?.getAttribute("href");
  $("targets").replaceChildren(...shown.map(listItem));
  if (focused) [...$("targets").querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  $("target-count").textContent = shown.length === state.targets.length ? `${shown.length}` : `${shown.length} of ${state.targets.length}`;
}

const pair = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
const MOST_TROUBLES = 12;

/** How the daemon fares, and what it cannot observe. */
function drawNode() {
  const node = state.node;
  $("node").hidden = node === null;
  if (node === null) return;
  $("node-figures").replaceChildren(
    pair("own CPU, of a core", `${format.percent(node.own_cpu_share)} of ${format.percent(node.own_cpu_budget_share)}`),
    pair("holds", `${format.percent(node.stop_share)} of ${format.percent(node.stop_budget_share)}`),
    ...Object.entries(node.by_state).filter(([, many]) => many > 0).map(([name, many]) => pair(name, `${many}`)),
    ...(node.left_out > 0 ? [pair("no room for", `${node.left_out}`)] : []));
  const troubled = node.targets.filter((target) => target.reason !== "");
  $("node-trouble").replaceChildren(
    ...(node.reload_trouble ? [make("li", {}, node.reload_trouble)] : []),
    ...troubled.slice(0, MOST_TROUBLES).map((target) =>
      make("li", {}, [`${target.command} (${target.pid}), ${target.state}: ${target.reason}`, target.remedy].filter(Boolean).join("; "))),
    ...(troubled.length > MOST_TROUBLES ? [make("li", {}, `and ${troubled.length - MOST_TROUBLES} more`)] : []));
}

// --- the chosen target

function tile(label, value, more) {
  return make("li", {}, make("span", { class: "label" }, label), make("span", { class: "value" }, value), make("span", { class: "more" }, more));
}

function drawHead(target) {
  const cost = target.cost;
  $("title").textContent = `${target.command} (pid ${target.pid})`;
  $("subtitle").textContent = [condition(target), target.executable, `${format.seconds(target.user_cpu_seconds)} of user CPU time`,
    `${target.windows} windows`, `${target.phases} phases`, `${target.bursts} bursts`].filter(Boolean).join(" · ");
  const rate = target.accesses_per_cpu_second;
  $("tiles").replaceChildren(
    ...target.caches_now.map((cache, index) => tile(`misses in ${cache.name} (${format.size(cache.size_bytes)}), now`,
      format.ratio(cache.miss_ratio, cache.low, cache.high), `whole run ${cacheText(target.caches[index])}`)),
    tile("accesses a CPU second", rate === null ? "not known" : format.count(rate), `measured for ${format.percent(target.rate_known_share)} of the time`),
    tile("cost to the target", format.percent(cost.spent_share), `of its CPU time, budget ${format.percent(cost.budget_share)}`));
  $("not-known").hidden = target.not_known.length === 0;
  $("not-known-list").replaceChildren(...target.not_known.map((entry) =>
    make("li", {}, entry.share === null ? entry.why : `${entry.what}, ${format.percent(entry.share)}: ${entry.why}`)));
  $("cost").replaceChildren(
    pair("target held, in all", format.seconds(cost.stop_seconds)), pair("longest hold", format.seconds(cost.longest_stop_seconds)),
    pair("breakpoint hits", format.seconds(cost.hit_seconds)),
    pair("CPU time taken while no CPU was idle", format.seconds(cost.taken_cpu_seconds)),
    pair("branch samples", `${format.seconds(cost.sampling_seconds)}${cost.sampled_share < 1 ? `, for ${format.percent(cost.sampled_share)} of the time` : ""}`),
    pair("memsampd's own CPU time", format.seconds(cost.own_cpu_seconds)),
    pair("its limit, as a share of the target's", format.percent(cost.own_cpu_share)),
    pair("bursts that showed a plausible future", `${cost.bursts.plausible} of ${cost.bursts.bursts}`),
    pair("samples lost", `${cost.lost} of ${cost.samples}`));
}

function chip(value, name, share) {
  const input = make("input", { type: "radio", name: "phase", value: `${value}` });
  input.checked = value === state.picked;
  input.addEventListener("change", () => { state.picked = value; drawFigures(); });
  const dot = make("span", { class: "dot" });
  dot.style.background = colourOf(value);
  return make("label", {}, input, dot, share === null ? name : `${name} · ${Math.round(100 * share)} %`);
}

function drawPicker() {
  const ids = state.curves.phases.map((phase) => phase.id);
  if (state.picked !== WHOLE_RUN && !ids.includes(state.picked)) state.picked = WHOLE_RUN;
  const key = JSON.stringify([state.id, colours.theme(), state.curves.phases.map((phase) => [phase.id, Math.round(100 * phase.weight)])]);
  if (state.drawn.picker === key) return;
  state.drawn.picker = key;
  const focused = document.activeElement?.name === "phase" ? document.activeElement.value : null;
  $("phases").replaceChildren(chip(WHOLE_RUN, "Whole run", null),
    ...state.curves.phases.map((phase) => chip(phase.id, `Phase ${phase.id}`, phase.weight)));
  if (focused !== null) $("phases").querySelector(`input[value="${CSS.escape(focused)}"]`)?.focus();
}

/** What comes from the store, not from this run of memsampd. */
function drawStored() {
  const until = state.history.stored_until_unix_seconds;
  const isShown = until !== null && until > (state.history.start_unix_seconds[0] ?? Infinity);
  $("heat-stored").hidden = !isShown;
  if (isShown) $("heat-stored").textContent = `Until ${format.clock(until)}, left of the broken line: from the store, as seen before memsampd was restarted.`;
  const known = state.phases.phases.filter((phase) => phase.stored_bursts > 0).map((phase) => `${phase.id} (${format.stored(phase)})`);
  $("phases-stored").hidden = known.length === 0;
  $("phases-stored").textContent = `Known from before: ${known.length === 1 ? "phase" : "phases"} ${known.join(", ")}.`;
}

function drawFigures() {
  if (state.history === null || state.curves === null) return;
  heat.show(state.history, state.picked === WHOLE_RUN ? null : state.picked);
  curvePlot.show(state.curves, state.picked);
  // Tables that nobody has opened cost nothing.
  if ($("heat-table").closest("details").open) heatTable($("heat-table"), state.history);
  if ($("curves-table").closest("details").open) curveTable($("curves-table"), state.curves, state.picked);
}

function draw() {
  const target = selected();
  $("empty").hidden = target !== undefined;
  $("target").hidden = target === undefined;
  document.title = target === undefined ? "memsampd" : `${target.command} – memsampd`;
  drawList();
  drawNode();
  if (target === undefined) return;
  drawHead(target);
  if (state.curves?.target !== state.id || state.history?.target !== state.id) return;
  drawPicker();
  phaseTable($("phases-table"), state.phases);
  drawStored();
  drawFigures();
}

// --- fetching

function choose() {
  const asked = decodeURIComponent(location.hash.slice(1));
  const known = state.targets.some((target) => target.target === asked);
  const id = known ? asked : state.targets.find((target) => target.attached)?.target ?? state.targets[0]?.target ?? null;
  if (id === state.id) return;
  Object.assign(state, { id, picked: WHOLE_RUN, phases: null, curves: null, history: null, historyMs: 0 });
}

async function fetchTarget() {
  const id = state.id;
  if (id === null) return;
  const range = $("range").value;
  const rangeSeconds = Number(range);
  const isDue = performance.now() - (state.historyMs ?? 0) >= (rangeSeconds > 900 ? SLOW_EVERY_MS : 0) || state.history === null;
  const points = Math.max(60, Math.min(600, Math.round($("heat").clientWidth / PIXELS_A_POINT) || 300));
  const [phases, curves, history] = await Promise.all([api.phases(id), api.curves(id),
    isDue ? api.windows(id, Math.max(0, selected().time_unix_seconds - rangeSeconds), points) : state.history]);
  if (id !== state.id || range !== $("range").value) return;
  if (isDue) state.historyMs = performance.now();
  Object.assign(state, { phases, curves, history });
}

let running = null;
let again = false;

/** Fetch and draw; a call during another one makes one more follow. */
async function refresh() {
  if (running !== null) { again = true; return; }
  running = true;
  try {
    do {
      again = false;
      const found = await api.targets();
      Object.assign(state, { targets: found.targets, node: found.node });
      choose();
      draw();
      await fetchTarget();
      draw();
      sayAge(found);
    } while (again);
  } catch (error) {
    say(`no answer: ${error.message}`, true);
  } finally {
    running = null;
  }
}

/** The server answers; whether there is still somebody who tells it something is another matter. */
function sayAge(found) {
  const isDaemon = found.node_age_seconds !== null;
  const seconds = found.node_age_seconds ?? found.last_snapshot_age_seconds ?? 0;
  if (seconds > OLD_SECONDS) say(`nothing new for ${format.seconds(seconds)}${isDaemon ? ": memsampd hangs" : ""}`, isDaemon);
  else say(`live, ${format.clock(Date.now() / 1000)}`, false);
}

function say(text, isLost) {
  $("connection").textContent = text;
  $("connection").classList.toggle("lost", isLost);
}

// --- themes

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = "system";

/** What was chosen; a browser that keeps nothing follows the system. */
function keptTheme() {
  try {
    return localStorage.getItem("theme") ?? "system";
  } catch {
    return chosenTheme;
  }
}

function keepTheme(theme) {
  chosenTheme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch { /* until the page is left, then */ }
}

function applyTheme() {
  const wanted = keptTheme();
  document.documentElement.dataset.theme = wanted === "system" ? (dark.matches ? "dark" : "light") : wanted;
  $("theme-name").textContent = wanted;
  colours.drawRamp($("ramp"));
  heat.build();
  curvePlot.build();
  if (state.curves !== null) drawPicker();
}

$("theme").addEventListener("click", () => {
  keepTheme(THEMES[(THEMES.indexOf(keptTheme()) + 1) % THEMES.length]);
  applyTheme();
});
dark.addEventListener("change", applyTheme);

// --- everything that people do

$("filter").addEventListener("input", drawList);
$("range").addEventListener("change", () => { state.historyMs = 0; state.history = null; refresh(); });
for (const table of ["heat-table", "curves-table"])
  $(table).closest("details").addEventListener("toggle", drawFigures);
const titled = (what) => `${selected().command} (pid ${selected().pid}): ${what}`;
$("heat-png").addEventListener("click", () => heat.plot && exporting.savePng(selected(), "heat-map", heat.plot, titled("miss ratio over time")));
$("heat-csv").addEventListener("click", () => state.history && exporting.saveHistory(selected(), state.history));
$("curves-png").addEventListener("click", () => curvePlot.plot && exporting.savePng(selected(), "curves", curvePlot.plot, titled(`miss-ratio curve, ${nameOf(state.picked)}`)));
$("curves-csv").addEventListener("click", () => state.curves && exporting.saveCurves(selected(), state.curves));
addEventListener("hashchange", refresh);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
setInterval(() => { if (!document.hidden) refresh(); }, EVERY_MS);

$("node").open = !matchMedia("(max-width: 52rem)").matches;
applyTheme();
refresh();
api.listen((kind) => { if (kind !== "phase" && !document.hidden) refresh(); }, (isLost) => { if (isLost) say("the server does not answer", true); });
