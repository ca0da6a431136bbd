// The Logs tab. Polls for what follows its positions, and keeps the lines in the page in order of time.
// Idea: the page has stretches of lines of each log. A gap before a stretch that does not continue the previous one shows how many
// lines are missing, and fetches them. An unfinished line is replaced until it ends.
(function () {
  "use strict";
  const MAX_LINES = 20000, MAX_SHOWN = 8000, FAST = 1000, SLOW = 5000, WAIT = 400;
  // Cursor movements of terminals are ignored; colours are shown on request.
  const ESCAPES = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])/g, COLOURS = /\x1b\[([0-9;]*)m/;
  const digits = new Intl.NumberFormat("en"), count = (n) => digits.format(n);
  const two = (n, width = 2) => String(n).padStart(width, "0");

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-submits]").forEach((select) => select.addEventListener("change", () => {
      if (select.name === "task") { const attempt = select.form.elements.attempt; if (attempt) attempt.disabled = true; }
      select.form.submit();
    }));
    const log = document.getElementById("log");
    if (log) start(log);
  });

  function start(log) {
    const $ = (id) => document.getElementById(id);
    const names = log.dataset.tasks.split(" ").filter(Boolean), merged = names.length > 1;
    const width = Math.max(...names.map((name) => name.length));
    const token = document.querySelector("#post input[name=csrfmiddlewaretoken]").value;
    // Per task: the next position, the stretches of lines (of the attempt that is being read), the unfinished line and, while line numbers
    // are not known from the beginning, `shift`: the number of lines before those counted so far.
    const tasks = new Map(names.map((name, order) => [name, { name, order, attempt: null, position: null, ended: false, runs: [], open: null, shift: null, byLine: new Map(), waits: "" }]));
    if (log.dataset.attempt) { const only = tasks.get(names[0]); only.attempt = Number(log.dataset.attempt); only.position = { attempt: only.attempt, offset: 0, cursor: "", placed: true }; }
    let words = "", lines = 0, pause = FAST, timer = null, waiting = null, asked = 0, keepsColours = false, sequence = 0;
    let hits = [], total = 0, hit = -1, isWhole = true;
    const [isError, isForm, isWarning, isQuiet] = ["error", "forms", "warning", "quiet"].map((name) => new RegExp(log.dataset[name]));

    // -- a line ---------------------------------------------------------------------------------------------------------

    // Returns what a terminal would show of a line: the text after the last carriage return, without escapes.
    function visible(text, escapes) {
      if (escapes) text = text.replace(ESCAPES, "").replace(/[\b]+/g, "");
      const parts = text.replace(/\r+$/, "").split("\r");
      return parts[parts.length - 1];
    }
    function coloured(raw) {
      const found = [], kept = visible(raw, false).split(/(\x1b\[[0-9;]*m)/);
      let names = new Set();
      for (const part of kept) {
        const codes = COLOURS.exec(part);
        if (codes) {
          for (const code of codes[1].split(";").map(Number)) {
            if (!code) names = new Set();
            else if (code === 1) names.add("ansi-bold");
            else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) { names = new Set([...names].filter((name) => name === "ansi-bold")); names.add("ansi-" + code % 10); }
            else if (code === 39) names = new Set([...names].filter((name) => name === "ansi-bold"));
          }
          continue;
        }
        const text = part.replace(ESCAPES, "");
        if (!text) continue;
        const span = document.createElement("span");
        span.className = [...names].join(" ");
        span.textContent = text;
        found.push(span);
      }
      return found;
    }
    // What clusters/logs/levels.py says of a line. What a framework says on every start may look like an error.
    function levelOf(text) {
      if (isQuiet.test(text)) return "quiet";
      return isError.test(text) || isForm.test(text) ? "error" : isWarning.test(text) ? "warning" : "";
    }
    function fill(div, raw) {
      div.raw = raw;
      const text = visible(raw, true), cut = text.length > MAX_SHOWN, shown = cut ? text.slice(0, MAX_SHOWN) : text;
      const parts = [], at = words ? text.toLowerCase().indexOf(words) : -1;
      if (merged) { const name = document.createElement("b"); name.textContent = div.task.name.padEnd(width) + "  "; parts.push(name); }
      if (at >= 0 && at < MAX_SHOWN) {
        const mark = document.createElement("mark");
        mark.textContent = shown.slice(at, at + words.length);
        parts.push(shown.slice(0, at), mark, shown.slice(at + words.length));
      } else if (keepsColours && !cut && raw.includes("\x1b")) parts.push(...coloured(raw));
      else parts.push(shown || " ");
      if (cut) { const more = document.createElement("i"); more.textContent = " … " + count(text.length - MAX_SHOWN) + " more characters; download the log to see them"; parts.push(more); }
      div.replaceChildren(...parts);
      div.isHit = at >= 0;
      div.classList.toggle("hit", div.isHit);
      const level = levelOf(shown);
      if (level) div.dataset.level = level; else delete div.dataset.level;
    }
    // Renders only those of many lines that change.
    function mark() { for (const div of log.children) if (div.raw !== undefined && div.no !== null && (div.isHit || (words && visible(div.raw, true).toLowerCase().includes(words)))) fill(div, div.raw); none(); }
    // The number counts in the whole log from 1, once it is known. The style sheet shows number and time.
    function number(div) {
      const known = div.no !== null && (div.placed || div.task.shift);
      if (known) { div.dataset.no = two(count(absolute(div) + 1), 6).replace(/^0+/, (zeros) => " ".repeat(zeros.length)); div.task.byLine.set(div.attempt + ":" + absolute(div), div); }
      if (div.time) {
        const at = new Date(div.time / 1000);
        div.dataset.at = two(at.getHours()) + ":" + two(at.getMinutes()) + ":" + two(at.getSeconds()) + "." + two(at.getMilliseconds(), 3);
      }
    }
    const absolute = (div) => div.placed ? div.no : div.no + div.task.shift;
    function line(task, raw, no, time, placed) {
      const div = document.createElement("div");
      Object.assign(div, { task, no, time, placed, attempt: task.attempt, sequence: sequence++ });
      fill(div, raw);
      number(div);
      lines += 1;
      return div;
    }
    function note(task, text) {
      const div = line(task, "— " + text + " —", null, task.latest || 0, true);
      div.classList.add("note");
      return div;
    }

    // -- the order of lines ---------------------------------------------------------------------------------------------

    // By time. Lines of one task keep their order: a new one goes after all its earlier ones.
    const isBefore = (one, other) => one.time < other.time || (one.time === other.time && one.task.order < other.task.order);
    function insert(divs) {
      divs.sort((one, other) => one.time - other.time || one.task.order - other.task.order || one.sequence - other.sequence);
      let at = log.lastElementChild;
      for (let n = divs.length - 1; n >= 0; n -= 1) {
        while (at && at.task !== divs[n].task && isBefore(divs[n], at)) at = at.previousElementSibling;
        log.insertBefore(divs[n], at ? at.nextSibling : log.firstChild);
      }
    }

    // -- stretches and gaps ---------------------------------------------------------------------------------------------

    function timesOf(piece) {
      const times = piece.times;
      let next = 0, time = 0;
      return (n) => { while (next < times.length && times[next][0] <= n) { time = times[next][1]; next += 1; } return time; };
    }
    // Shows before a stretch how many lines are missing, or nothing if it continues the previous one.
    function gap(task, stretch) {
      const before = task.runs[task.runs.indexOf(stretch) - 1], low = before && before.attempt === stretch.attempt ? before.end : 0;
      const counted = stretch.placed || task.shift !== null;
      const begin = stretch.placed ? stretch.begin : stretch.begin + (task.shift || 0);
      if (counted && begin <= low) { if (stretch.gap) stretch.gap.remove(); stretch.gap = null; return; }
      if (!stretch.gap) {
        stretch.gap = document.createElement("div");
        stretch.gap.className = "gap";
        const button = document.createElement("button");
        button.type = "button";
        button.addEventListener("click", () => more(task, stretch));
        stretch.gap.append(button);
      }
      const missing = counted ? count(begin - low) + (begin - low === 1 ? " line" : " lines") : "Lines";
      stretch.gap.firstChild.textContent = missing + (merged ? " of " + task.name : "") + (low ? " in between" : " before this") + " not shown · show";
      Object.assign(stretch.gap, { task, attempt: stretch.attempt, no: null, time: stretch.head.time, sequence: stretch.head.sequence - 0.5 });
      stretch.head.before(stretch.gap);
    }
    function low(task, stretch) { const before = task.runs[task.runs.indexOf(stretch) - 1]; return before && before.attempt === stretch.attempt ? before.end : 0; }
    // Fetches the lines before a stretch, as many as an answer holds; with `at`, those around that line.
    async function more(task, stretch, at) {
      const begin = stretch.placed ? stretch.begin : stretch.begin + (task.shift || 0), counted = stretch.placed || task.shift !== null;
      const wanted = { attempt: stretch.attempt, low: low(task, stretch), high: begin };
      if (!counted) wanted.first = stretch.first;
      else if (at !== undefined) wanted.at = at;
      let piece;
      try {
        const answer = await ask({ [task.name]: wanted });
        piece = answer.pieces[0];
        if (answer.error) throw new Error(answer.error);
      } catch (trouble) { say(trouble.message); return; }
      if (!piece) return;
      if (piece.anew) { anew(task, piece); return; }
      const parts = piece.text.split("\n");
      if (parts[parts.length - 1] === "") parts.pop();
      if (!counted) {
        // Now the start of that stretch is known.
        task.shift = piece.line + parts.length - stretch.begin;
        [...log.children].forEach((div) => { if (div.task === task && div.attempt === stretch.attempt && div.no !== null) number(div); });
      }
      const height = log.scrollHeight, time = timesOf(piece), head = stretch.gap || stretch.head;
      const divs = parts.map((part, n) => line(task, part, piece.line + n, time(n), true));
      divs.forEach((div) => { div.attempt = stretch.attempt; });
      if (divs.length) {
        place(task, divs, head);
        task.runs.splice(task.runs.indexOf(stretch), 0, { attempt: stretch.attempt, begin: piece.line, end: piece.line + parts.length, placed: true, head: divs[0], gap: null });
      } else stretch.begin = low(task, stretch) - (stretch.placed ? 0 : task.shift);
      const now = task.runs.indexOf(stretch);
      if (divs.length) gap(task, task.runs[now - 1]);
      gap(task, stretch);
      join(task);
      if (log.scrollTop > 0 || at === undefined) log.scrollTop += log.scrollHeight - height;
      say("");
      if (!counted && at !== undefined) await reach(task, at);
    }
    // Inserts lines before `head`, by time among the lines of other tasks.
    function place(task, divs, head) {
      let at = head.previousElementSibling;
      for (let n = divs.length - 1; n >= 0; n -= 1) {
        while (at && at.task !== task && isBefore(divs[n], at)) at = at.previousElementSibling;
        log.insertBefore(divs[n], at ? at.nextSibling : log.firstChild);
      }
    }
    // Joins adjacent stretches.
    function join(task) {
      for (let n = task.runs.length - 1; n > 0; n -= 1) {
        const one = task.runs[n - 1], other = task.runs[n];
        if (other.gap || one.attempt !== other.attempt || one.placed !== other.placed) continue;
        one.end = other.end;
        if (task.tail === other) task.tail = one;
        task.runs.splice(n, 1);
      }
    }
    function anew(task, piece) {
      [...log.children].forEach((div) => { if (div.task === task) { div.remove(); if (!div.classList.contains("gap")) lines -= 1; } });
      Object.assign(task, { runs: [], open: null, shift: null, position: null, tail: null });
      task.byLine.clear();
      insert(add(piece));
    }

    // Adds a piece at the end of a log; its lines still have to be inserted.
    function add(piece) {
      const task = tasks.get(piece.task), divs = [], time = timesOf(piece);
      if (task.attempt !== null && task.attempt !== piece.attempt) {
        Object.assign(task, { open: null, shift: null, attempt: piece.attempt, tail: null });
        divs.push(note(task, "attempt " + (piece.attempt + 1)));
      }
      task.attempt = piece.attempt;
      const parts = piece.text.split("\n"), last = parts.pop();
      let no = piece.line;
      const put = (part, isOpen, n) => {
        const now = time(n) || task.latest || 0;
        if (n === 0 && task.open) { fill(task.open, task.open.raw + part); if (!isOpen) task.open = null; return; }
        const div = line(task, part, no + n, now, piece.placed);
        task.latest = now;
        divs.push(div);
        if (isOpen) task.open = div;
      };
      parts.forEach((part, n) => put(part, false, n));
      if (last) put(last, true, parts.length);
      const head = divs.find((div) => div.no !== null);
      if (head && (!task.tail || task.tail.placed !== piece.placed)) {
        task.tail = { attempt: piece.attempt, begin: head.no, end: 0, placed: piece.placed, first: piece.first, head, gap: null };
        task.runs.push(task.tail);
      }
      if (task.tail) task.tail.end = piece.line + parts.length;
      if (piece.note && piece.ended) { task.open = null; divs.push(note(task, piece.note)); }
      task.waits = piece.ended ? "" : piece.note;
      task.ended = piece.ended;
      task.position = { attempt: piece.attempt, offset: piece.offset, cursor: piece.cursor, placed: piece.placed };
      return divs;
    }
    // The page holds a limited number of lines; the oldest become part of a gap.
    function trim() {
      const shortened = new Set();
      while (lines > MAX_LINES) {
        const div = log.firstElementChild;
        const task = div.task, stretch = task.runs.find((each) => each.head === div);
        if (div.classList.contains("gap")) { div.remove(); const cut = task.runs.find((each) => each.gap === div); if (cut) cut.gap = null; continue; }
        if (stretch) {
          let next = div.nextElementSibling;
          while (next && (next.task !== task || next.no === null || next.classList.contains("gap"))) next = next.nextElementSibling;
          if (next && next.attempt === div.attempt && !task.runs.some((each) => each.head === next)) { stretch.head = next; stretch.begin = next.no; shortened.add(stretch); }
          else { task.runs.splice(task.runs.indexOf(stretch), 1); if (task.tail === stretch) task.tail = null; }
        }
        if (div.no !== null && (div.placed || task.shift !== null)) task.byLine.delete(div.attempt + ":" + absolute(div));
        if (task.open === div) task.open = null;
        div.remove();
        lines -= 1;
      }
      tasks.forEach((task) => task.runs.forEach((stretch) => { if (shortened.has(stretch) || task.runs[0] === stretch) gap(task, stretch); }));
    }

    // -- requests -------------------------------------------------------------------------------------------------------

    function state(text) { if ($("log-state").textContent !== text) $("log-state").textContent = text; }
    function say(error) {
      const all = [...tasks.values()], left = all.filter((task) => !task.ended), waits = left.map((task) => task.waits).find(Boolean);
      const many = (n, word) => count(n) + " " + word + (n === 1 ? "" : "s"), level = (name) => log.querySelectorAll("[data-level=" + name + "]").length;
      const errors = level("error"), warnings = level("warning");
      const shown = many(lines, "line") + (all.some((task) => task.runs.some((each) => each.gap)) ? " shown" : "")
        + (errors ? " · " + many(errors, "line") + " with errors" : "") + (warnings ? " · " + many(warnings, "line") + " with warnings" : "");
      $("log-follow").parentElement.hidden = !left.length;
      if (errors) $("log-error-none").textContent = "";
      none();
      if (error) state(error);
      else if (waits) state(waits);
      else if (left.length) state(lines ? shown + " · live" : "Nothing has been written yet.");
      else state(lines ? shown + " · finished" : "Nothing was written.");
    }
    // What the choice of lines shows. Without one of them an empty box would look broken.
    const KEPT = { "only-hits": ".hit", "only-told": "[data-level=error], [data-level=warning]", "only-errors": "[data-level=error]", "no-quiet": ":not([data-level=quiet])" };
    function none() {
      const choice = $("log-lines").value, isNone = Boolean(choice && lines && !log.querySelector(KEPT[choice])), isGone = isNone && !log.querySelector(".gap");
      const text = !isNone ? "" : choice === "only-hits" && !words ? "No line matches: the search is empty." : isGone ? "No line matches." : "No line shown here matches.";
      if ($("log-none").firstElementChild.textContent !== text) $("log-none").firstElementChild.textContent = text;
      $("log-none").hidden = !isNone;
      if (log.hidden && !isGone) { log.hidden = false; if ($("log-follow").checked) log.scrollTop = log.scrollHeight; }
      log.hidden = isGone;
    }
    async function answerOf(response) {
      if (!response.ok) throw new Error(response.status === 401 || response.redirected ? "You have been signed out." : "The portal answered " + response.status + ".");
      return response.json();
    }
    async function ask(body) {
      return answerOf(await fetch(log.dataset.url, { method: "POST", headers: { "Content-Type": "application/json", "X-CSRFToken": token }, body: JSON.stringify(body) }));
    }
    function phases(found) {
      for (const option of document.querySelectorAll("#log-task option")) {
        const phase = found[option.value];
        if (phase && option.textContent !== option.value + " (" + phase + ")") option.textContent = option.value + " (" + phase + ")";
      }
    }
    async function poll() {
      timer = null;
      if (document.hidden) { timer = setTimeout(poll, SLOW); return; }
      let news = 0, error = "";
      try {
        const wanted = {};
        tasks.forEach((task) => { if (!task.ended) wanted[task.name] = task.position; });
        const answer = await ask(wanted), stays = log.scrollTop, divs = [];
        error = answer.error && answer.error + " Trying again…";
        phases(answer.phases || {});
        for (const piece of answer.pieces) {
          news += piece.text.length;
          if (piece.anew) anew(tasks.get(piece.task), piece);
          else divs.push(...add(piece));
        }
        insert(divs);
        answer.pieces.forEach((piece) => { const task = tasks.get(piece.task); if (task.tail && task.runs[0] === task.tail) gap(task, task.tail); });
        trim();
        if ($("log-follow").checked) log.scrollTop = log.scrollHeight; else if (news) log.scrollTop = stays;
      } catch (trouble) { error = (trouble.message || "The portal does not answer.") + " Trying again…"; }
      say(error);
      pause = news ? FAST : Math.min(SLOW, pause * 1.5);
      if ([...tasks.values()].some((task) => !task.ended)) timer = setTimeout(poll, news > 100000 ? 50 : pause);
    }

    // -- finding --------------------------------------------------------------------------------------------------------

    function show(div, choose) {
      log.querySelectorAll(".at").forEach((each) => each.classList.remove("at"));
      $("log-follow").checked = false;
      div.classList.add("at");
      div.scrollIntoView({ block: "center" });
      if (choose) history.replaceState(null, "", "#" + div.task.name + ":L" + (absolute(div) + 1));
    }
    // Shows line `no` of a task (from 0), and fetches it if it is in a gap.
    async function reach(task, no, choose) {
      const found = () => task.byLine.get(task.attempt + ":" + no);
      if (!found()) {
        const begin = (each) => each.placed ? each.begin : each.begin + (task.shift || 0);
        const counted = (each) => each.placed || task.shift !== null;
        const stretch = task.runs.find((each) => each.attempt === task.attempt && (!counted(each) || begin(each) > no));
        if (stretch) await more(task, stretch, no);
      }
      if (found()) show(found(), choose); else state("Line " + count(no + 1) + " of " + task.name + " is not there.");
    }
    async function seek(query) {
      const url = new URL(log.dataset.search, location.href), mine = ++asked;
      Object.entries({ task: merged ? "all" : names[0], ...query }).forEach(([name, value]) => url.searchParams.set(name, value));
      if (log.dataset.attempt) url.searchParams.set("attempt", log.dataset.attempt);
      const answer = await answerOf(await fetch(url));
      if (mine !== asked) return null;
      if (answer.error) state(answer.error);
      const found = answer.tasks.flatMap((each) => each.hits.map(([no, time]) => ({ task: tasks.get(each.task), no, time })));
      found.sort((one, other) => one.time - other.time || one.task.order - other.task.order || one.no - other.no);
      return { found, total: answer.tasks.reduce((sum, each) => sum + each.total, 0), whole: answer.tasks.every((each) => each.complete) };
    }
    function told() {
      const all = total > hits.length ? count(total) + " (the first " + count(hits.length) + ")" : count(total);
      $("log-hits").textContent = !words ? "" : total ? (hit >= 0 ? count(hit + 1) + " of " : "") + all + (isWhole ? "" : "+") : "no match";
      $("log-next").disabled = $("log-previous").disabled = !hits.length;
    }
    async function step(by) {
      if (!hits.length) return;
      hit = hit < 0 ? (by > 0 ? 0 : hits.length - 1) : (hit + by + hits.length) % hits.length;
      told();
      await reach(hits[hit].task, hits[hit].no);
    }
    async function search() {
      words = $("log-search").value.toLowerCase();
      hits = []; total = 0; hit = -1;
      told();
      if (!words) { asked += 1; mark(); return; }
      $("log-hits").textContent = "…";
      try {
        const asking = seek({ q: words });
        mark();
        const answer = await asking;
        if (!answer) return;
        hits = answer.found; total = answer.total; isWhole = answer.whole;
        told();
        if (hits.length && !log.querySelector(".hit")) await step(1);
        else if (hits.length) { const first = log.querySelector(".hit"); $("log-follow").checked = false; first.scrollIntoView({ block: "center" }); }
      } catch (trouble) { $("log-hits").textContent = ""; say(trouble.message); }
    }

    // -- controls -------------------------------------------------------------------------------------------------------

    function kept(id, act) {
      const box = $(id), key = "log." + id;
      try { const known = localStorage.getItem(key); if (known !== null) box.checked = known === "1"; } catch { /* A browser may keep nothing; then it is as the page says. */ }
      box.addEventListener("change", () => { act(box.checked); try { localStorage.setItem(key, box.checked ? "1" : "0"); } catch { /* As above. */ } });
      act(box.checked);
    }
    kept("log-wrap", (is) => log.classList.toggle("is-wrapped", is));
    kept("log-times", (is) => log.classList.toggle("has-times", is));
    kept("log-colours", (is) => { keepsColours = is; [...log.children].forEach((div) => { if (div.raw !== undefined) fill(div, div.raw); }); });
    kept("log-levels", (is) => log.classList.toggle("has-levels", is));
    $("log-lines").addEventListener("change", (event) => {
      log.classList.remove(...[...event.target.options].map((option) => option.value).filter(Boolean));
      if (event.target.value) log.classList.add(event.target.value);
      none();
    });
    $("log-all").addEventListener("click", () => { $("log-lines").value = ""; $("log-lines").dispatchEvent(new Event("change")); $("log-lines").focus(); });
    $("log-follow").addEventListener("change", (event) => { if (event.target.checked) log.scrollTop = log.scrollHeight; });
    // Scrolling up stops following; scrolling to the end resumes it.
    log.addEventListener("scroll", () => { $("log-follow").checked = log.scrollTop + log.clientHeight >= log.scrollHeight - 24; });
    $("log-search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, WAIT); });
    $("log-search").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      step(event.shiftKey ? -1 : 1);
    });
    $("log-next").addEventListener("click", () => step(1));
    $("log-previous").addEventListener("click", () => step(-1));
    $("log-error").addEventListener("click", async () => {
      try {
        const answer = await seek({ errors: "1" });
        if (!answer) return;
        if (answer.found.length) await reach(answer.found[0].task, answer.found[0].no, true);
        $("log-error-none").textContent = answer.found.length ? "" : "There is none.";
      } catch (trouble) { say(trouble.message); }
    });
    log.addEventListener("mouseover", (event) => {
      const div = event.target.closest("#log > div");
      if (div && div.time && !div.title) div.title = new Date(div.time / 1000).toISOString() + (div.dataset.no ? " · line " + div.dataset.no.trim() + " of " + div.task.name : "");
    });
    // A click on a line's number or time puts the line into the URL.
    log.addEventListener("click", (event) => {
      const div = event.target;
      if (div.parentElement === log && div.dataset.no && getSelection().isCollapsed && event.clientX < div.getBoundingClientRect().left + parseFloat(getComputedStyle(div).paddingLeft)) show(div, true);
    });
    async function linked() {
      const found = /^#(.+):L(\d{1,15})$/.exec(decodeURIComponent(location.hash)), task = found && tasks.get(found[1]);
      if (task) await reach(task, Number(found[2]) - 1, true);
    }
    addEventListener("hashchange", linked);
    poll().then(linked);
  }
})();
