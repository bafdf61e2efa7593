"use strict";
// Everything is put in as text (textContent, createTextNode): no string of the data is ever parsed as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const COLOURS = {
  wait: 8, reset: 1, model: 4, step: 2, grade: 3, replay: 5, other: 6,
  agent: 1, task: 3, sandbox: 5, cluster: 4,
};
const SHOWN = 200;

function add(node, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "class") node.setAttribute("class", value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
const h = (tag, properties, ...children) => add(document.createElement(tag), properties, children);
const s = (tag, properties, ...children) =>
  add(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

function number(value, digits = 3) {
  if (value === null || value === undefined) return "";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size && size < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
}
const share = (value) => (value === null || value === undefined ? "" : `${number(100 * value)} %`);
function time(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${number(1000 * seconds)} ms`;
  if (seconds < 120) return `${number(seconds)} s`;
  return seconds < 7200 ? `${number(seconds / 60)} min` : `${number(seconds / 3600)} h`;
}
const colour = (name, index) => `var(--c${COLOURS[name] || (index % 8) + 1})`;

function table(heads, rows, numeric = []) {
  const kind = (at) => (numeric.includes(at) ? "n" : "name");
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head, at) => h("th", { class: kind(at) }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: kind(at) }, cell)))))));
}

// Charts

function pace(low, high, count, whole = false) {
  // A round distance at which there are at most so many ticks.
  const step = Math.max((high - low) / count || 1, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(step));
  return power * (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).find((each) => power * each >= step * 0.999);
}

function ticks(low, high, count, whole = false) {
  const nice = pace(low, high, count, whole);
  const found = [];
  for (let at = Math.ceil(low / nice - 1e-9) * nice; at <= high + nice * 1e-6; at += nice) found.push(Number(at.toPrecision(12)));
  return found;
}

function frame(chart, width, xs, ys, log) {
  // Scales, axes and grid; xs and ys are [least, most]. The uppermost line of the grid is above all, or what it may be.
  if (ys[1] !== chart.most) ys = [ys[0], Math.ceil(ys[1] / pace(...ys, 4) - 1e-9) * pace(...ys, 4)];
  const height = 230, left = 46, right = 14, top = 8, bottom = 40;
  const put = log ? Math.log10 : (each) => each;
  const [low, high] = xs.map(put);
  const x = (each) => left + ((put(each) - low) / (high - low || 1)) * (width - left - right);
  const y = (each) => height - bottom - ((each - ys[0]) / (ys[1] - ys[0] || 1)) * (height - top - bottom);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": chart.title });
  for (const at of ticks(...ys, 4)) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }));
    svg.append(s("text", { x: left - 8, y: y(at) + 4, "text-anchor": "end" }, number(at)));
  }
  svg.append(s("line", { class: "axis", x1: left, x2: width - right, y1: y(ys[0]), y2: y(ys[0]) }));
  svg.append(s("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, chart.x));
  const label = (at, text) => svg.append(s("text", { x: x(at), y: height - bottom + 17, "text-anchor": "middle" }, text));
  return { svg, x, y, left, right, top, bottom, height, width, label };
}

function legend(items) {
  return h("div", { class: "legend" }, items.map(([name, paint, look]) =>
    h("span", {}, h("i", { class: look === "dash" ? "dash" : "", style: { background: paint, borderColor: paint } }), name)));
}

function hover(plot, f, find) {
  // find(x in pixels) -> {x, title, rows: [[name, text]]}: what is there, and where exactly.
  const line = s("line", { class: "cross", y1: f.top, y2: f.height - f.bottom, visibility: "hidden" });
  const tip = h("div", { class: "tip", hidden: "" });
  f.svg.append(line);
  plot.append(tip);
  const hide = () => { tip.hidden = true; line.setAttribute("visibility", "hidden"); };
  f.svg.addEventListener("pointerleave", hide);
  f.svg.addEventListener("pointermove", (event) => {
    const box = f.svg.getBoundingClientRect();
    const found = find(((event.clientX - box.left) * f.width) / box.width);
    if (!found) return hide();
    line.setAttribute("x1", found.x);
    line.setAttribute("x2", found.x);
    line.setAttribute("visibility", "visible");
    tip.replaceChildren(h("b", {}, found.title),
      h("table", {}, found.rows.map(([name, text]) => h("tr", {}, h("td", {}, name), h("td", {}, text)))));
    tip.hidden = false;
    const room = plot.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, found.x + 14 <= room ? found.x + 14 : Math.min(room, found.x - tip.offsetWidth - 14))}px`;
  });
}

const draw = {
  lines(chart, plot, width) {
    const points = chart.series.flatMap((each) => each.points);
    const xs = [Math.min(...points.map((p) => p[0])), Math.max(...points.map((p) => p[0]))];
    const most = Math.max(...points.map((p) => p[1]), chart.most === undefined ? -Infinity : chart.most);
    const least = Math.min(...points.map((p) => p[1]), chart.least === undefined ? Infinity : chart.least);
    const f = frame(chart, width, xs, [least, most === least ? least + 1 : most], chart.log);
    const at = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
    const few = at.length <= Math.max(2, (width - 60) / 60) ? at
      : ticks(...xs, Math.max(2, Math.floor(width / 70)), at.every(Number.isInteger));
    few.forEach((each) => f.label(each, number(each)));
    let index = 0;
    const paints = chart.series.map((each) => (each.look === "main" && chart.series.length > 1
      && chart.series.some((other) => other.look === "thin") ? "var(--ink)" : colour("", index++)));
    chart.series.forEach((each, n) => {
      const path = each.points.map(([a, b], i) => `${i ? "L" : "M"}${f.x(a).toFixed(1)},${f.y(b).toFixed(1)}`).join("");
      f.svg.append(s("path", { d: path, fill: "none", stroke: paints[n], "stroke-width": each.look === "main" ? 2.2 : 1.4,
        "stroke-linejoin": "round", "stroke-dasharray": each.look === "dash" ? "5 4" : "none",
        opacity: each.look === "thin" ? 0.75 : 1 }));
      if (each.points.length <= 40 && each.look !== "thin") {
        each.points.forEach(([a, b]) => f.svg.append(s("circle", { cx: f.x(a), cy: f.y(b), r: 2.8, fill: paints[n] })));
      }
    });
    hover(plot, f, (px) => {
      const near = at.reduce((best, each) => (Math.abs(f.x(each) - px) < Math.abs(f.x(best) - px) ? each : best), at[0]);
      const rows = chart.series.flatMap((each) => each.points.filter((p) => p[0] === near).map((p) => [each.name, number(p[1])]));
      return { x: f.x(near), title: `${chart.x} ${number(near)}`, rows };
    });
    plot.prepend(f.svg);
    return chart.series.length > 1 ? chart.series.map((each, n) => [each.name, paints[n], each.look]) : [];
  },

  stack(chart, plot, width) {
    // Steps that would be too narrow to see are drawn together, as their mean.
    const wide = Math.max(1, Math.floor((width - 60) / 4));
    const size = Math.ceil(chart.at.length / wide);
    const groups = [];
    for (let from = 0; from < chart.at.length; from += size) {
      const to = Math.min(chart.at.length, from + size);
      const mean = (values) => values.slice(from, to).reduce((sum, each) => sum + each, 0) / (to - from);
      const name = to - from > 1 ? `${number(chart.at[from])} to ${number(chart.at[to - 1])}` : number(chart.at[from]);
      groups.push({ name, values: chart.series.map((each) => mean(each.values)) });
    }
    const sums = groups.map((group) => group.values.reduce((sum, each) => sum + each, 0));
    const f = frame(chart, width, [-0.5, groups.length - 0.5], [0, Math.max(...sums) || 1]);
    const room = (f.width - f.left - f.right) / groups.length;
    const gap = room > 8 ? 2 : 0.5;
    const every = Math.ceil(groups.length / Math.max(2, Math.floor((width - 60) / 50)));
    groups.forEach((group, n) => {
      let from = 0;
      group.values.forEach((value, k) => {
        const top = f.y(from + value);
        f.svg.append(s("rect", { x: f.x(n) - room / 2 + gap / 2, width: Math.max(0.5, Math.min(40, room - gap)), y: top,
          height: Math.max(0, f.y(from) - top), fill: colour(chart.series[k].name, k),
          transform: room - gap > 40 ? `translate(${(room - gap - 40) / 2})` : "" }));
        from += value;
      });
      if (n % every === 0) f.label(n, group.name.split(" ")[0]);
    });
    hover(plot, f, (px) => {
      const n = Math.floor((px - f.left) / room);
      if (n < 0 || n >= groups.length) return null;
      const rows = groups[n].values.map((value, k) => [chart.series[k].name, number(value)]);
      return { x: f.x(n), title: `${chart.x} ${groups[n].name}`, rows: [...rows, ["sum", number(sums[n])]] };
    });
    plot.prepend(f.svg);
    return chart.series.map((each, k) => [each.name, colour(each.name, k)]);
  },

  histogram(chart, plot, width) {
    const xs = [chart.bins[0][0], chart.bins[chart.bins.length - 1][1]];
    const f = frame({ ...chart, x: chart.x }, width, xs, [0, Math.max(...chart.bins.map((bin) => bin[2]))], true);
    const powers = [];
    for (let at = Math.floor(Math.log10(xs[0])); at <= Math.log10(xs[1]); at += 1) powers.push(10 ** at, 2 * 10 ** at, 5 * 10 ** at);
    let last = -Infinity;
    powers.filter((each) => each >= xs[0] * 0.999 && each <= xs[1] * 1.001).forEach((each) => {
      if (f.x(each) - last > 46) { f.label(each, number(each)); last = f.x(each); }
    });
    chart.bins.forEach(([low, high, count]) => f.svg.append(s("rect", { x: f.x(low) + 1, fill: "var(--c1)", y: f.y(count),
      width: Math.max(1, f.x(high) - f.x(low) - 2), height: f.y(0) - f.y(count) })));
    for (const at of Object.values(chart.marks)) {
      f.svg.append(s("line", { class: "cross", x1: f.x(at), x2: f.x(at), y1: f.top, y2: f.y(0) }));
    }
    hover(plot, f, (px) => {
      const bin = chart.bins.find(([low, high]) => px >= f.x(low) && px < f.x(high));
      return bin && { x: (f.x(bin[0]) + f.x(bin[1])) / 2, title: `${time(bin[0])} to ${time(bin[1])}`, rows: [["episodes", number(bin[2])]] };
    });
    plot.prepend(f.svg);
    return Object.entries(chart.marks).map(([name, at]) => [`${name} ${time(at)}`, "var(--soft)", "dash"]);
  },

  bars(chart, plot) {
    const sum = (row) => Object.values(row.parts).reduce((total, each) => total + each, 0);
    const most = Math.max(...chart.rows.map(sum)) || 1;
    const text = (value) => (chart.unit === "s" ? time(value) : number(value));
    const names = [...new Set(chart.rows.flatMap((row) => Object.keys(row.parts)))];
    plot.append(h("div", { class: "bars" }, chart.rows.flatMap((row) => [
      h("span", {}, row.name),
      h("div", { class: "bar" }, Object.entries(row.parts).map(([name, value]) => h("i", { title: `${name}: ${text(value)}`,
        style: { width: `${(100 * value) / most}%`, background: colour(name, names.indexOf(name)) } }))),
      h("span", {}, text(sum(row))),
    ])));
    return names.map((name, n) => [chart.rows.length > 1 ? name : `${name} ${text(chart.rows[0].parts[name])}`, colour(name, n)]);
  },
};

const asTable = {
  lines: (chart) => {
    const at = [...new Set(chart.series.flatMap((each) => each.points.map((p) => p[0])))].sort((a, b) => a - b);
    const found = chart.series.map((each) => new Map(each.points));
    return [[chart.x, ...chart.series.map((each) => each.name)], at.map((x) => [number(x), ...found.map((each) => number(each.get(x), 4))])];
  },
  stack: (chart) => [[chart.x, ...chart.series.map((each) => each.name)],
    chart.at.map((x, n) => [number(x), ...chart.series.map((each) => number(each.values[n], 4))])],
  histogram: (chart) => [["from", "to", "episodes"], chart.bins.map(([low, high, count]) => [time(low), time(high), number(count)])],
  bars: (chart) => {
    const names = [...new Set(chart.rows.flatMap((row) => Object.keys(row.parts)))];
    return [["run", ...names.map((name) => `${name}, ${chart.unit}`)],
      chart.rows.map((row) => [row.name, ...names.map((name) => number(row.parts[name], 4))])];
  },
};

function chartCard(chart) {
  const plot = h("div", { class: "plot" });
  const below = h("div", {});
  let drawn = 0;
  const redraw = () => {
    const width = Math.round(plot.clientWidth);
    if (!width || width === drawn) return;
    drawn = width;
    plot.replaceChildren();
    below.replaceChildren(legend(draw[chart.kind](chart, plot, width)));
  };
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(plot);
  const values = h("details", { ontoggle: (event) => {
    if (event.target.open && event.target.children.length === 1) {
      const [heads, rows] = asTable[chart.kind](chart);
      event.target.append(table(heads, rows, heads.map((_, at) => at).slice(1)));
    }
  } }, h("summary", {}, "Values"));
  return h("section", { class: "card chart" }, h("h3", {}, chart.title),
    h("p", { class: "soft" }, [chart.note, chart.kind === "lines" || chart.kind === "stack" ? chart.y : ""].filter(Boolean).join(" · ")),
    plot, below, values);
}

// The page

function tiles() {
  // Of several runs, which are seeds of one thing: means of rewards and rates, sums of counts.
  const found = [];
  const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
  const all = (name) => data.runs.map((run) => run[name]).filter((each) => each !== undefined && each !== null);
  const total = (name) => all(name).reduce((sum, each) => sum + each, 0);
  if (all("last_reward").length) {
    found.push(["reward, last 5 steps", number(mean(all("last_reward"))), `from ${number(mean(all("first_reward")))} in the first 2`]);
    found.push(["training steps", number(total("steps")), all("steps").length > 1 ? `in ${all("steps").length} runs` : ""]);
  }
  if (all("resolved").length) found.push(["tasks resolved", `${number(total("resolved"))} of ${number(total("tasks"))}`, "by any sample"]);
  const passes = all("pass_at_k").map((each) => each["1"]).filter((each) => each !== undefined);
  if (passes.length) found.push(["pass@1", share(mean(passes)), passes.length > 1 ? `mean of ${passes.length} runs` : ""]);
  found.push(["episodes", number(total("episodes")), ""]);
  found.push(["failed episodes", number(total("failed")), ""]);
  if (all("seconds").length) found.push(["training time", time(total("seconds")), ""]);
  return h("div", { class: "tiles" }, found.map(([name, value, note]) =>
    h("div", { class: "card tile" }, h("span", { class: "soft" }, name), h("b", {}, value), h("span", { class: "soft" }, note))));
}

function runTable() {
  const rows = data.runs.map((run) => [run.name + (run.running ? " (no report yet)" : ""), run.policy || "training",
    number(run.steps), number(run.episodes), run.last_reward === undefined ? "" : `${number(run.first_reward)} → ${number(run.last_reward)}`,
    run.pass_at_k ? Object.entries(run.pass_at_k).map(([k, rate]) => `@${k} ${share(rate)}`).join(", ") : "", number(run.failed), run.versions]);
  const heads = ["run", "policy", "steps", "episodes", "reward", "pass", "failed", "versions"];
  const kept = heads.map((_, at) => at).filter((at) => rows.some((row) => row[at] !== ""));
  const only = (row) => kept.map((at) => row[at]);
  return table(only(heads), rows.map(only), kept.map((at, n) => ([2, 3, 4, 6].includes(at) ? n : -1)));
}

function repositories() {
  const many = data.runs.length > 1;
  const bar = (each) => h("div", { class: "bar" }, h("i", { style: { width: `${100 * each}%`, background: "var(--c2)" } }));
  const rows = data.repositories.map((each) => [...(many ? [each.run] : []), each.repository, number(each.tasks),
    number(each.episodes), share(each.resolved), each.reward >= 0 && each.reward <= 1 && each.reward !== null ? bar(each.reward) : "",
    number(each.reward), number(each.turns), time(each.seconds), number(each.failed)]);
  const heads = [...(many ? ["run"] : []), "repository", "tasks", "episodes", "resolved", "mean reward", "", "turns", "time", "failed"];
  const first = many ? 2 : 1;
  return table(heads, rows, heads.map((_, at) => at).filter((at) => at >= first && at !== first + 3));
}

const chip = (each) => h("span", { class: `chip ${each.outcome}` }, each.outcome === "failed" ? `failed: ${each.owner}` : each.outcome);
const place = (each) => [data.runs.length > 1 ? each.run : "", each.evaluation].filter(Boolean).join(" · ");

function trajectories() {
  const words = h("input", { type: "search", placeholder: "Task, repository, reason …", "aria-label": "Filter" });
  const outcomes = [...new Set(data.episodes.map((each) => each.outcome))];
  const outcome = h("select", { "aria-label": "Outcome" }, h("option", { value: "" }, "every outcome"),
    outcomes.map((each) => h("option", { value: each }, each)));
  const count = h("span", { class: "soft" });
  const list = h("div", {});
  let most = SHOWN;
  const heads = ["task", "sample", "outcome", "reward", "turns", "time", "why"];
  const fill = () => {
    const wanted = words.value.toLowerCase();
    const found = data.episodes.map((each, at) => [each, at]).filter(([each]) => (!outcome.value || each.outcome === outcome.value)
      && [each.instance_id, each.repo, each.why, each.run, each.evaluation].join(" ").toLowerCase().includes(wanted));
    const kind = (at) => (at === 6 ? "name wide" : [1, 3, 4, 5].includes(at) ? (at === 1 || at > 3 ? "n wide" : "n") : "name");
    const rows = found.slice(0, most).map(([each, at]) => h("tr", {}, [
      [h("a", { href: `#trajectory-${at}` }, each.instance_id), place(each) ? h("div", { class: "soft" }, place(each)) : ""],
      number(each.sample), chip(each), number(each.reward), number(each.turns), time(each.seconds.total), each.why,
    ].map((cell, n) => h("td", { class: kind(n) }, ...[cell].flat()))));
    list.replaceChildren(h("div", { class: "scroll" }, h("table", { id: "trajectories" },
      h("thead", {}, h("tr", {}, heads.map((head, n) => h("th", { class: kind(n) }, head)))), h("tbody", {}, rows))));
    if (found.length > most) list.append(h("button", { onclick: () => { most += SHOWN; fill(); } }, `Show more of ${number(found.length)}`));
    count.textContent = `${number(found.length)} of ${number(data.all_episodes)}`;
  };
  words.addEventListener("input", () => { most = SHOWN; fill(); });
  outcome.addEventListener("input", () => { most = SHOWN; fill(); });
  fill();
  return h("div", { class: "card" }, h("div", { class: "tools" }, words, outcome, count), list);
}

function overview() {
  return [
    h("h1", {}, data.runs.map((run) => run.name).join(", ")),
    h("p", { class: "soft" }, `minisandbox_ray report, ${data.made}`),
    tiles(),
    h("div", { class: "charts" }, data.charts.map(chartCard)),
    h("h2", {}, data.runs.length > 1 ? "Runs" : "Run"), h("div", { class: "card" }, runTable()),
    ...(data.repositories.length ? [h("h2", {}, "Repositories"), h("div", { class: "card" }, repositories())] : []),
    ...(data.episodes.length ? [h("h2", {}, "Trajectories"), trajectories()] : []),
  ];
}

// One trajectory

function diff(text) {
  const kind = (line) => (/^(diff |index |---|\+\+\+|@@|new file|deleted file)/.test(line) ? "hunk" : line[0] === "+" ? "add" : line[0] === "-" ? "del" : "plain");
  return h("pre", { id: "diff" }, text.replace(/\n$/, "").split("\n").map((line) => h("span", { class: kind(line) }, line || " ")));
}

function section(title, ...children) {
  return [h("h2", {}, title), ...children];
}

function turn(each, number_) {
  const status = each.exit_code === null ? "" : `exit ${each.exit_code}`;
  return h("div", { class: "card turn" },
    h("div", { class: "row" }, h("h3", {}, `Turn ${number_}`), h("span", { class: "soft" }, status), h("span", { class: "soft end" }, time(each.seconds))),
    h("pre", { class: "action" }, each.action), each.observation ? h("pre", { class: "observation" }, each.observation) : null);
}

function trajectory(at) {
  const each = data.episodes[at];
  const link = (to, text) => (data.episodes[to] ? h("a", { href: `#trajectory-${to}` }, text) : null);
  const parts = Object.entries(each.seconds).filter(([name, value]) => name !== "total" && value > 0);
  const head = [
    h("div", { class: "row" }, h("a", { href: "#" }, "← all"), link(at - 1, "previous"), link(at + 1, "next")),
    h("h1", { style: { marginTop: "10px" } }, each.instance_id),
    h("p", { class: "row" }, chip(each), h("span", { class: "soft" }, [place(each), each.repo, `sample ${each.sample}`, `reward ${number(each.reward)}`,
      `${each.turns} turns`, each.policy, each.node].filter(Boolean).join(" · "))),
    each.why ? h("p", { class: "why" }, each.why) : null,
    h("p", { class: "soft" }, [`${time(each.seconds.total)} in all`, ...parts.map(([name, value]) => `${name} ${time(value)}`)].join(" · ")),
  ];
  const full = each.full;
  if (!full) {
    return [...head, h("p", { class: "why" }, "Its texts are not on this page, which holds so many only: python -m minisandbox_ray trajectories show FILE")];
  }
  const replayed = full.replay && full.replay.count ? `Played again elsewhere ${full.replay.count} times, at turns ${full.replay.turns.join(", ")}` : "";
  const tests = full.tests.length ? h("details", full.tests.some(([, status]) => status !== "passed") ? { open: "" } : {},
    h("summary", {}, `${full.tests.length + full.more_tests} tests`), table(["test", "status"], full.tests),
    full.more_tests ? h("p", { class: "soft" }, `and ${full.more_tests} more that passed, or whose like is above`) : null) : null;
  return [...head, replayed ? h("p", { class: "why" }, replayed) : null,
    full.prompt ? h("details", { open: "" }, h("summary", {}, "Prompt"), h("pre", {}, full.prompt)) : null,
    ...full.actions.map((one, n) => turn(one, n + 1)),
    ...(full.diff ? section("Diff", diff(full.diff)) : []),
    ...section("Grade", h("div", { class: "card" }, h("div", { class: "row" }, chip(each), h("span", {}, each.why), full.tampered ? h("b", {}, "tampered") : null),
      tests, full.log ? h("details", {}, h("summary", {}, "Log of the tests"), h("pre", {}, full.log)) : null)),
  ];
}

let from = 0;
function show() {
  const found = /^#trajectory-(\d+)$/.exec(location.hash);
  const at = found && Number(found[1]);
  if (found && data.episodes[at]) {
    if (!main.dataset.at) from = scrollY;
    main.dataset.at = at;
    main.replaceChildren(...trajectory(at).filter(Boolean));
    scrollTo(0, 0);
  } else {
    delete main.dataset.at;
    main.replaceChildren(...home);
    scrollTo(0, from);
  }
}
const home = overview();
addEventListener("hashchange", show);
show();
