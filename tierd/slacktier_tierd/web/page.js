// SPDX-License-Identifier: Apache-2.0
// Shows the head's resources and follows its watch. Everything comes from the head itself; text is only ever set as text.
"use strict";

const KINDS = ["bindings", "tasks", "replicas", "tables", "pools"];
const resources = Object.fromEntries(KINDS.map((kind) => [kind, new Map()]));
let token = sessionStorage.getItem("token") || "";
let version = null;
let isDrawn = false;

const byId = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function table(columns, rows) {
  if (!rows.length) return element("p", "none", "empty");
  const made = element("table");
  const head = made.createTHead().insertRow();
  columns.forEach((column) => head.append(element("th", column)));
  const body = made.createTBody();
  rows.forEach((cells) => {
    const row = body.insertRow();
    cells.forEach((cell) => {
      const place = row.insertCell();
      if (cell instanceof Node) place.append(cell);
      else place.textContent = cell === null || cell === undefined ? "" : String(cell);
      if (typeof cell === "number") place.className = "number";
    });
  });
  return made;
}

const sorted = (kind) => [...resources[kind].values()].sort((a, b) => (a.name < b.name ? -1 : 1));
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;
const ms = (value) => (value === null || value === undefined ? "" : `${value.toFixed(3)} ms`);
const percent = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`);
const state = (text) => element("span", text, ["complete", "ready", "succeeded"].includes(text) ? "good"
  : ["failed", "lost", "missing", "refused"].includes(text) ? "late" : "");

// The read time as a bar against the layer's window, which is the line.
function windowBar(windowMs, readMs) {
  const holder = element("div", undefined, "window");
  const scale = 100 / Math.max(windowMs, readMs, 1e-9) / 1.05;
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  const bar = document.createElementNS(space, "rect");
  const size = { width: readMs * scale, height: 10, class: readMs > windowMs ? "read over" : "read" };
  Object.entries(size).forEach(([name, value]) => bar.setAttribute(name, value));
  const end = document.createElementNS(space, "line");
  const at = { x1: windowMs * scale, x2: windowMs * scale, y1: 0, y2: 10, class: "end" };
  Object.entries(at).forEach(([name, value]) => end.setAttribute(name, value));
  svg.append(bar, end);
  holder.append(svg);
  holder.title = `read ${ms(readMs)} of a window of ${ms(windowMs)}`;
  return holder;
}

function bindingRows() {
  return sorted("bindings").flatMap((binding) => binding.status.layers.map((layer) => [
    binding.name, layer.layer_id, layer.replica, layer.tier, ms(layer.window_ms), ms(layer.read_ms),
    ms(layer.measured_read_ms), windowBar(layer.window_ms, layer.measured_read_ms ?? layer.read_ms),
    ms(layer.measured_stall_ms), percent(layer.hit_rate),
    binding.status.access_version === binding.status.in_force_version ? "in force" : "not yet",
  ]));
}

const SHOW = {
  bindings: () => table(["instance", "layer", "replica", "tier", "window", "predicted", "measured", "", "stall",
    "hit rate", ""], bindingRows()),
  tasks: () => table(["replica", "node", "state", "phase", "done", "message"], sorted("tasks").reverse().slice(0, 50)
    .map((task) => [task.spec.replica, task.spec.node, state(task.status.state), task.status.phase,
      `${gib(task.status.done_bytes)} of ${gib(task.status.total_bytes)}`, task.status.message])),
  replicas: () => table(["name", "table", "tier", "place", "state", "done", "epoch", "restarts", "message"],
    sorted("replicas").map((replica) => [replica.name, replica.spec.table, replica.status.tier,
      `${replica.spec.pool}/${replica.status.members.join(",")}`, state(replica.status.state),
      percent(replica.status.progress), replica.status.epoch, replica.status.restarts, replica.status.message])),
  tables: () => table(["name", "layer", "model", "rows", "size", "complete copies"], sorted("tables").map((each) => [
    each.name, each.spec.layer_id, each.status.model, each.status.rows, gib(each.status.region_bytes),
    each.status.replicas_complete])),
  pools: () => table(["place", "tier", "node", "state", "free", "message"], sorted("pools").flatMap((pool) =>
    pool.status.members.map((member) => [`${pool.name}/${member.name}`, pool.spec.tier, member.node,
      state(member.state), gib(member.free_bytes), member.message]))),
};

function draw() {
  if (isDrawn) return;
  isDrawn = true;
  requestAnimationFrame(() => {
    isDrawn = false;
    KINDS.forEach((kind) => byId(kind).replaceChildren(SHOW[kind]()));
  });
}

function take(change) {
  version = change.version;
  if (change.type === "sync") KINDS.forEach((kind) => resources[kind].clear());
  else if (change.type === "put") resources[change.kind].set(change.name, change.item);
  else resources[change.kind].delete(change.name);
}

function say(text) { byId("state").textContent = text; }

async function follow() {
  const query = version === null ? "" : `&version=${version}`;
  const answer = await fetch(`/v1/watch?kinds=${KINDS.join(",")}${query}`, {
    headers: { Authorization: `Bearer ${token}` }, cache: "no-store",
  });
  if (answer.status === 401) { token = ""; sessionStorage.removeItem("token"); throw new Error("the token is not valid"); }
  if (!answer.ok) throw new Error(`the head answers ${answer.status}`);
  sessionStorage.setItem("token", token);
  byId("login").hidden = true;
  byId("main").hidden = false;
  say("live");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    events.flatMap((event) => event.split("\n")).filter((line) => line.startsWith("data: "))
      .forEach((line) => take(JSON.parse(line.slice(6))));
    draw();
  }
}

async function connect() {
  while (token) {
    try {
      await follow();
      say("the head closed the connection; trying again");
    } catch (fault) {
      say(`not connected: ${fault.message}`);
    }
    await new Promise((wake) => setTimeout(wake, 2000));
  }
  byId("login").hidden = false;
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  version = null;
  connect();
});
if (token) connect();
