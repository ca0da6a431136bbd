// The frame in the browser. Pages work without it, except for live parts. Idea: all handlers are attached to the document once and
// react to attributes, so parts that arrive later (htmx) need no set-up.
(function () {
  "use strict";
  const $ = (selector, root) => (root || document).querySelector(selector);
  const $$ = (selector, root) => [...(root || document).querySelectorAll(selector)];

  // --- Messages ------------------------------------------------------------------------------------------------
  function toast(text, level, id) {
    const box = $("#toasts");
    const line = (id && document.getElementById(id)) || document.createElement("div");
    if (id) line.id = id;
    line.className = "toast-line toast-" + (level || "info");
    const words = document.createElement("span");
    const button = document.createElement("button");
    words.textContent = text;
    button.type = "button";
    button.className = "btn btn-quiet btn-icon";
    button.dataset.dismiss = "";
    button.setAttribute("aria-label", "Dismiss");
    button.textContent = "×";
    if (level === "error") line.setAttribute("role", "alert");
    line.replaceChildren(words, button);
    box.append(line);
    if (!id && level !== "error") setTimeout(() => line.remove(), 8000);
  }
  window.portalToast = toast;
  // Success messages may disappear; errors stay until they are closed.
  $$(".toast-success, .toast-info", $("#toasts")).forEach((line) => setTimeout(() => line.remove(), 8000));

  // Messages of an action that stays on the page (HX-Trigger).
  document.addEventListener("said", (event) => event.detail.value.forEach(([level, text]) => toast(text, level)));

  // --- Ticked rows for actions on several: [data-pick-all] ticks all of its table -------------------------------------------
  function picked() {
    const found = $$(".pick"), on = found.filter((box) => box.checked).length;
    $$("[data-picked]").forEach((words) => { words.textContent = on + " selected"; });
    $$("[data-pick-all]").forEach((all) => { all.checked = on > 0 && on === found.length; all.indeterminate = on > 0 && on < found.length; });
  }
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-pick-all]")) $$(".pick", event.target.closest("table")).forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("[data-pick-all], .pick")) picked();
  });
  document.addEventListener("acted", () => { $$(".pick").forEach((box) => { box.checked = false; }); picked(); });

  // --- Rows of a file ([data-rows]): columns sort, numbers as numbers; a field finds rows ----------------------------------
  const asNumber = (text) => text.trim() === "" ? NaN : Number(text);
  function rows() {
    $$("[data-rows]:not(.is-ready)").forEach((part) => {
      part.classList.add("is-ready");
      const lines = $$("tbody tr", part);
      $$("thead th", part).forEach((head, n) => {
        const filled = lines.map((line) => line.cells[n] ? line.cells[n].textContent : "").filter(Boolean);
        if (filled.length && filled.every((text) => !isNaN(asNumber(text)))) [head, ...lines.map((line) => line.cells[n])].forEach((cell) => cell && cell.classList.add("is-number"));
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = head.textContent;
        head.replaceChildren(button);
      });
    });
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-rows] th button");
    if (!button) return;
    const head = button.parentElement, body = $("tbody", head.closest("table")), isNumber = head.classList.contains("is-number");
    const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1, text = (line) => line.cells[head.cellIndex] ? line.cells[head.cellIndex].textContent : "";
    const order = isNumber ? (a, b) => asNumber(a) - asNumber(b) : (a, b) => a.localeCompare(b);
    // Rows without a value stand last in both orders.
    body.append(...[...body.rows].sort((a, b) => !text(a) - !text(b) || turn * order(text(a), text(b)) || 0));
    $$("th", head.parentElement).forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
  });
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-rows] [type=search]")) return;
    const part = event.target.closest("[data-rows]"), words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean), lines = $$("tbody tr", part);
    lines.forEach((line) => { const text = line.textContent.toLowerCase(); line.hidden = !words.every((word) => text.includes(word)); });
    const shown = lines.filter((line) => !line.hidden).length;
    $("output", part).textContent = words.length ? shown + " of " + lines.length + " rows" : lines.length + " rows";
  });
  document.addEventListener("htmx:afterSwap", rows, true);
  rows();
  // Links of which one is shown ([data-one-of]).
  document.addEventListener("htmx:beforeRequest", (event) => {
    const links = event.target.closest("[data-one-of]");
    if (links) $$("a", links).forEach((link) => { if (link === event.target) link.setAttribute("aria-current", "step"); else link.removeAttribute("aria-current"); });
  });

  // --- Menus: <details class="menu">. One open at a time, placed so that no scrolling box cuts it off -----------------------
  function place(menu) {
    const items = $(":scope > .menu-items", menu);
    const at = $("summary", menu).getBoundingClientRect();
    items.classList.add("is-placed");
    const width = items.offsetWidth, height = items.offsetHeight;
    const left = menu.classList.contains("menu-start") ? at.left : at.right - width;
    const below = at.bottom + 4 + height <= window.innerHeight;
    items.style.left = Math.max(8, Math.min(left, window.innerWidth - width - 8)) + "px";
    items.style.top = (below || at.top < height ? at.bottom + 4 : at.top - 4 - height) + "px";
  }
  function closeMenus(except) {
    $$("details.menu[open]").forEach((menu) => { if (menu !== except && !menu.contains(except)) menu.open = false; });
  }
  document.addEventListener("toggle", (event) => {
    const menu = event.target;
    if (!menu.matches || !menu.matches("details.menu")) return;
    if (menu.open) { closeMenus(menu); place(menu); }
  }, true);
  document.addEventListener("click", (event) => {
    const inside = event.target.closest("details.menu");
    closeMenus(inside);
    if (inside && event.target.closest(".menu-items a, .menu-items button")) inside.open = false;
    const dismiss = event.target.closest("[data-dismiss]");
    if (dismiss) dismiss.parentElement.remove();
  });
  window.addEventListener("resize", () => closeMenus());
  document.addEventListener("scroll", (event) => {
    if (event.target.closest && event.target.closest(".menu-items")) return;
    $$("details.menu[open]").forEach((menu) => {
      const at = $("summary", menu).getBoundingClientRect();
      if (at.bottom < 0 || at.top > window.innerHeight) menu.open = false; else place(menu);
    });
  }, true);

  // --- Keys --------------------------------------------------------------------------------------------------
  // Enter in such a field presses its own button, and not the first one of the form.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.matches("[data-enter]")) return;
    event.preventDefault();
    document.getElementById(event.target.dataset.enter).click();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea, select, [contenteditable]");
    const menu = event.target.closest("details.menu") || $("details.menu[open]");
    if (palette && (isShortcut(event) || (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey))) {
      event.preventDefault();
      openPalette();
    } else if (event.key === "Escape" && menu && menu.open) {
      menu.open = false;
      $("summary", menu).focus();
    } else if (event.key === "Escape" && $(".side.is-open")) {
      navigation(false);
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && menu && menu.contains(event.target)) {
      const items = $$(".menu-items a, .menu-items button:not([disabled]), .menu-items input", menu);
      if (!items.length) return;
      event.preventDefault();
      menu.open = true;
      const step = event.key === "ArrowDown" ? 1 : -1;
      const at = items.indexOf(document.activeElement);
      items[(at < 0 && step < 0 ? items.length - 1 : at + step + items.length) % items.length].focus();
    }
  });

  // --- The palette (Ctrl-K, /): a combobox whose listbox the server fills ---------------------------------------------------
  const palette = $("#palette"), paletteInput = palette && $("input", palette), paletteList = palette && $("#palette-list");
  const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
  // In a terminal Ctrl-K belongs to the shell.
  function isShortcut(event) {
    return event.key.toLowerCase() === "k" && (isMac ? event.metaKey : event.ctrlKey) && !event.altKey && !event.shiftKey && !event.target.closest(".xterm");
  }
  const options = () => $$("[role=option]", paletteList);
  function choose(option) {
    options().forEach((each) => each.setAttribute("aria-selected", String(each === option)));
    if (!option) return paletteInput.removeAttribute("aria-activedescendant");
    paletteInput.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }
  let entered = false;  // Enter was pressed before the results of the last words had come
  function openPalette() {
    if ($("dialog[open]")) return;
    closeMenus();
    entered = false;
    palette.showModal();
    paletteInput.focus();
    paletteInput.select();
    window.htmx.trigger(paletteInput, "opened");
  }
  if (palette) {
    if (isMac) $$("kbd[data-mac]").forEach((key) => { key.textContent = key.dataset.mac; });
    document.addEventListener("click", (event) => {
      if (event.target.closest("[data-palette]") && !event.ctrlKey && !event.metaKey) { event.preventDefault(); openPalette(); }
      else if (event.target === palette || event.target.closest("[data-palette-close], #palette-list .hit")) palette.close();
    });
    paletteInput.addEventListener("keydown", (event) => {
      const all = options(), at = all.findIndex((each) => each.getAttribute("aria-selected") === "true");
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        if (all.length) choose(all[(at + (event.key === "ArrowDown" ? 1 : -1) + all.length) % all.length]);
      } else if (event.key === "Escape" && !event.isComposing) {
        event.preventDefault();  // a field for searching would only be emptied by it
        palette.close();
      } else if (event.key === "Enter" && !event.isComposing) {
        const box = $("[data-words]", paletteList);
        if (!box || box.dataset.words !== paletteInput.value.trim()) { event.preventDefault(); entered = true; }
        else if (all[at]) { event.preventDefault(); all[at].click(); }
      } else entered = false;
    });
    paletteList.addEventListener("htmx:afterSwap", () => {
      const all = options(), box = $("[data-words]", paletteList);
      all.forEach((each, n) => { each.id = "option-" + n; });
      choose(all[0]);
      $("#announced").textContent = all.length === 1 ? "1 result" : all.length + " results";
      if (entered && box && box.dataset.words === paletteInput.value.trim()) { entered = false; if (all[0]) all[0].click(); }
    });
  }
  const current = $(".side [aria-current]");
  if (current && !matchMedia("(max-width: 820px)").matches) current.scrollIntoView({ block: "nearest" });

  // --- Navigation on small screens (a link to #navigation without this script) ----------------------------------------
  function navigation(open) {
    $(".side").classList.toggle("is-open", open);
    const button = $(".top-nav");
    button.setAttribute("aria-expanded", String(open));
    if (open) $(".side a").focus(); else button.focus();
  }
  document.addEventListener("click", (event) => {
    const side = $(".side");
    if (!side) return;
    if (event.target.closest(".top-nav")) { event.preventDefault(); navigation(!side.classList.contains("is-open")); }
    else if (event.target.closest(".side-close")) { event.preventDefault(); navigation(false); }
    else if (side.classList.contains("is-open") && !event.target.closest(".side")) side.classList.remove("is-open");
  });

  // --- Theme -------------------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-choice]");
    if (!button) return;
    event.preventDefault();
    const choice = button.dataset.themeChoice;
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = "theme=" + choice + "; path=/; max-age=31536000; SameSite=Lax" + secure;
    window.portalTheme(choice);
    $$("[data-theme-choice]").forEach((other) => other.setAttribute("aria-pressed", String(other.dataset.themeChoice === choice)));
  });

  // --- Copy --------------------------------------------------------------------------------------------------
  function showCopyButtons(root) { if (navigator.clipboard) $$("[data-copy][hidden], [data-copy-from][hidden]", root).forEach((b) => { b.hidden = false; }); }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-from]");
    if (!button) return;
    const source = button.dataset.copyFrom && $(button.dataset.copyFrom);
    const words = $("span", button);
    const before = words && words.textContent;
    try {
      await navigator.clipboard.writeText(source ? source.value || source.textContent : button.dataset.copy);
      if (words) { words.textContent = "Copied"; button.dataset.copied = ""; setTimeout(() => { words.textContent = before; delete button.dataset.copied; }, 1500); }
      else toast("Copied.", "success");
    } catch (error) {
      toast("The browser did not allow copying; select the text and copy it by hand.", "error");
    }
  });

  // --- Confirmation before something is lost: data-confirm on a button or link, hx-confirm on anything htmx ------------------
  function ask(element, text, go) {
    const dialog = $("#confirm"), form = $("form", dialog), typed = $("#confirm-typed"), input = $("input", typed);
    const [no, yes] = $$("button", form);
    const name = element.dataset.confirmName || "";
    $("#confirm-title").textContent = element.dataset.confirmTitle || element.textContent.trim() + "?";
    $("#confirm-text").textContent = text;
    yes.textContent = element.dataset.confirmYes || element.textContent.trim() || "Go on";
    no.textContent = element.dataset.confirmNo || "Go back";
    typed.hidden = !name;
    $("b", typed).textContent = name;
    input.value = "";
    yes.disabled = !!name;
    input.oninput = () => { yes.disabled = input.value !== name; };
    input.onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); if (!yes.disabled) yes.click(); } };
    // A menu item cannot have the focus once its menu is closed, but the menu's button can.
    const menu = element.closest("details.menu:not([open])"), back = menu ? $("summary", menu) : element;
    dialog.onclose = () => { if (dialog.returnValue === "yes") go(); else back.focus(); };
    dialog.returnValue = "no";
    dialog.showModal();
    (name ? input : no).focus();
  }
  let confirmed = null;
  document.addEventListener("click", (event) => {
    const element = event.target.closest("[data-confirm]");
    if (!element || element === confirmed) { confirmed = null; return; }
    event.preventDefault();
    event.stopPropagation();
    closeMenus();
    ask(element, element.dataset.confirm, () => {
      confirmed = element;
      // Tells the page behind the button that the question was answered; otherwise it asks itself.
      if (element.matches("button:not([name])")) { element.name = "confirmed"; element.value = "yes"; }
      element.click();
    });
  }, true);
  document.addEventListener("htmx:confirm", (event) => {
    if (!event.detail.question) return;
    event.preventDefault();
    ask(event.detail.elt, event.detail.question, () => event.detail.issueRequest(true));
  });

  // --- Times: the server writes them roughly, this keeps them exact ---------------------------------------------------------
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  function two(seconds) {
    const n = UNITS.findIndex(([size]) => seconds >= size);
    if (n < 0) return "0 s";
    const [size, unit] = UNITS[n], next = UNITS[n + 1];
    const second = next ? Math.floor((seconds % size) / next[0]) : 0;
    return Math.floor(seconds / size) + " " + unit + (second ? " " + second + " " + next[1] : "");
  }
  function one(seconds, round) {
    const [size, unit] = UNITS.find(([each]) => seconds >= each - (round === Math.ceil ? 1 : 0)) || UNITS[3];
    return round(seconds / size) + " " + unit;
  }
  // Exact times are UTC in the page. They are shown in the zone of the profile, else of the browser, with UTC in the tooltip.
  const OWN = document.documentElement.dataset.zone || Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  let clock;
  try {
    clock = new Intl.DateTimeFormat("en-GB", { timeZone: OWN, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
      hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "shortOffset" });
  } catch (error) { clock = null; }  // a browser that does not know the zone shows UTC
  function zoned(date) {
    const part = Object.fromEntries(clock.formatToParts(date).map((each) => [each.type, each.value]));
    return { day: part.year + "-" + part.month + "-" + part.day, time: part.hour + ":" + part.minute + ":" + part.second, zone: part.timeZoneName };
  }
  function inOwnZone(root) {
    if (clock) $$("time[data-moment]", root).forEach((time) => {
      const at = zoned(new Date(time.dateTime)), text = at.day + " " + at.time, day = at.day === zoned(new Date()).day ? "" : at.day + " ";
      time.textContent = time.dataset.moment === "minute" ? day + at.time.slice(0, 5) : time.dataset.moment === "short" ? text : text + " " + at.zone.replace("GMT", "UTC").replace(/\+0$/, "");
    });
    $$("input[data-zone-preset]", root).forEach((input) => {
      delete input.dataset.zonePreset;
      if ([...input.list.options].some((each) => each.value === OWN)) input.value = OWN;
    });
    if (clock) $$("input[data-zone-of]:not([data-zone-done])", root).forEach((field) => {
      // A time field names its zone, and a UTC value from the page is converted to it.
      const input = document.getElementById(field.dataset.zoneOf), label = input && $("label[for=" + input.id + "]");
      field.dataset.zoneDone = "";
      if (!input || field.value !== "UTC") return;
      const at = input.value && new Date(input.value + "Z");
      if (at && !isNaN(at)) { const own = zoned(at); input.value = own.day + "T" + own.time; }
      field.value = OWN;
      if (label) label.textContent = label.textContent.replace("(UTC)", "(" + OWN + ")");
    });
  }
  function tick(root) {
    const now = Date.now();
    $$("time[data-since], time[data-relative]", root).forEach((time) => {
      const away = (now - Date.parse(time.dateTime)) / 1000;
      let text;
      if ("since" in time.dataset) text = two(Math.max(0, away));
      else if (Math.abs(away) < 5) text = "just now";
      else text = away > 0 ? one(away, Math.floor) + " ago" : "in " + one(-away, Math.ceil);
      if (time.textContent !== text) time.textContent = text;
    });
  }
  setInterval(() => { if (!document.hidden) tick(); }, 1000);

  // --- Boxes that scroll can be scrolled by keys. Not every browser lets one reach a box that has nothing to reach in it -------
  function scrollable(root) {
    $$("pre, .table-wrap", root).forEach((box) => {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls && !box.hasAttribute("tabindex") && !$("a[href], button, input, select, summary", box)) box.tabIndex = box.dataset.scrolls = 0;
      else if (!scrolls && "scrolls" in box.dataset) { box.removeAttribute("tabindex"); delete box.dataset.scrolls; }
    });
  }
  window.addEventListener("resize", () => scrollable());
  document.addEventListener("toggle", (event) => { if (event.target.matches("details[open]:not(.menu)")) scrollable(event.target); }, true);

  // --- Screen readers: the text of each [data-announce] is announced when it is new; that its times go on is nothing new --------
  const heard = () => new Map($$("[data-announce]").map((e) => {
    const text = e.textContent.trim().replace(/\s+/g, " ");
    return [$$("time", e).reduce((rest, time) => rest.replace(time.textContent, ""), text), text];
  }));
  let said = heard();
  function announce() {
    const now = heard(), fresh = [...now].filter(([key]) => key && !said.has(key)).map(([, text]) => text);
    if (fresh.length) $("#announced").textContent = fresh.join(". ");
    said = now;
  }

  // The bell is announced when more is unread than on any page before, and not on each page again.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (!event.target.matches || !event.target.matches("[data-bell]")) return;
    const mark = $(".unread", event.target), unread = mark ? Number(mark.dataset.unread) : 0;
    const more = unread - Number(sessionStorage.getItem("unread") || unread);
    if (more > 0) $("#announced").textContent = more === 1 ? "1 new notification" : more + " new notifications";
    sessionStorage.setItem("unread", unread);
  });

  // --- Live parts: [data-live] with hx-get and hx-trigger="every Ns" ---------------------------------------------------
  // Not polled in hidden tabs. An unchanged part answers 304. A new version waits while the user works in the old one.
  const etags = new WeakMap(), asked = (config) => config.path + " " + new URLSearchParams([...config.formData]);
  const isLive = (element) => element && element.matches && element.matches("[data-live]");
  function inUse(part) {
    const active = document.activeElement, selection = document.getSelection();
    return !!$("details.menu[open]", part) || ($("dialog[open]") !== null) ||
      (part.contains(active) && active.matches("input:not([type=checkbox]), textarea, select")) ||
      (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  }
  function keyOf(element) {
    return element.id ? "#" + element.id : [element.tagName, element.getAttribute("href"), element.getAttribute("formaction"),
      element.name, element.value, element.getAttribute("aria-label"), element.dataset.key].join("|");
  }
  // htmx marks new content with its own classes.
  const boxOf = (element) => keyOf(element) + "|" + [...element.classList].filter((name) => !name.startsWith("htmx-")).join(".");
  let kept = null;
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (isLive(event.detail.elt) && (document.hidden || leaving)) event.preventDefault();
  });
  // Leaving a page aborts its requests, which is not an error; and what it shows may be deleted by then. A download leaves no page.
  let leaving = false;
  window.addEventListener("beforeunload", () => { leaving = true; setTimeout(() => { leaving = false; }, 10000); });
  window.addEventListener("pageshow", () => { leaving = false; });
  document.addEventListener("htmx:beforeRequest", (event) => {
    const xhr = event.detail.xhr, stopped = xhr.onabort;
    xhr.onabort = (abort) => { if (!leaving && stopped) stopped.call(xhr, abort); };
  });
  document.addEventListener("htmx:configRequest", (event) => {
    if (isLive(event.detail.elt)) event.detail.timeout = 30000;
    const etag = isLive(event.detail.elt) && etags.get(event.detail.elt);
    if (etag && etag.asked === asked(event.detail)) event.detail.headers["If-None-Match"] = etag.value;
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const part = event.detail.target, live = isLive(event.detail.requestConfig.elt);
    if (event.detail.xhr.status === 304) { event.detail.shouldSwap = false; return; }
    if (!live || !event.detail.shouldSwap) return;
    if (inUse(part)) { event.detail.shouldSwap = false; return; }
    const value = event.detail.xhr.getResponseHeader("ETag");
    if (value) etags.set(event.detail.requestConfig.elt, { asked: asked(event.detail.requestConfig), value });
    kept = {
      part,
      focus: part.contains(document.activeElement) ? keyOf(document.activeElement) : null,
      scroll: $$("*", part).filter((e) => e.scrollLeft || e.scrollTop).map((e) => [boxOf(e), e.scrollLeft, e.scrollTop]),
      open: $$("details[open]:not(.menu)", part).map((e) => e.id || $("summary", e).textContent),
      checked: $$("input[type=checkbox]", part).filter((e) => e.checked !== e.defaultChecked).map((e) => [keyOf(e), e.checked]),
    };
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const root = event.detail.target || event.target;
    showCopyButtons(root);
    tick(root);
    inOwnZone(root);
    scrollable(root.parentNode || root);
    announce();
    // A menu whose items have just arrived has a new size.
    const menu = root.closest && root.closest("details.menu[open]");
    if (menu) { place(menu); const first = $("input", root); if (first) first.focus(); }
    if (!kept || kept.part !== root) return;
    const all = $$("*", root);
    kept.scroll.forEach(([key, left, top]) => {
      const element = all.find((e) => boxOf(e) === key);
      if (element) { element.scrollLeft = left; element.scrollTop = top; }
    });
    kept.open.forEach((key) => { const d = $$("details", root).find((e) => (e.id || $("summary", e).textContent) === key); if (d) d.open = true; });
    kept.checked.forEach(([key, on]) => { const box = $$("input[type=checkbox]", root).find((e) => keyOf(e) === key); if (box) box.checked = on; });
    picked();
    if (kept.focus) { const element = all.find((e) => keyOf(e) === kept.focus); if (element) element.focus({ preventScroll: true }); }
    kept = null;
  });
  // A field of conditions (“loss < 0.3, LR = 0.1”) offers the names for the one that is being written.
  document.addEventListener("input", (event) => {
    const field = event.target;
    if (!field.matches("[data-conditions]")) return;
    const head = /^(?:.*(?:[,;]|&&|\|\||\b(?:and|or)\b)\s*)?/i.exec(field.value)[0];
    [...field.list.options].forEach((option) => { option.value = head + option.text; });
  });
  // When the list says that other GPUs are held, or the page of a cluster that its state is another one, the counter of the top bar
  // must not say something else for long.
  const heldOf = () => { const held = $("#morning dd, .page-title [data-announce]"); return held ? held.textContent : null; };
  let held = heldOf();
  document.addEventListener("htmx:afterSettle", () => {
    const now = heldOf(), counter = $(".gpus");
    if (now !== held && counter) window.htmx.trigger(counter, "changed");
    held = now;
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || !window.htmx) return;
    tick();
    $$("[data-live][hx-get]").forEach((part) => window.htmx.ajax("GET", part.getAttribute("hx-get"), { source: part, target: part, swap: part.getAttribute("hx-swap") || "innerHTML" }));
  });
  // Failures in a row by address of a live part. A part may be silent while others answer; parts that left the page do not count.
  const failures = new Map(), addressOf = (part) => part.getAttribute("hx-get");
  function failed(event) {
    const status = event.detail.xhr ? event.detail.xhr.status : 0;
    if (status === 401) return toast("You have been signed out. Sign in again in another tab; what you typed here stays.", "error", "signed-out");
    if (isLive(event.detail.elt)) {
      const address = addressOf(event.detail.elt), times = (failures.get(address) || 0) + 1;
      failures.set(address, times);
      // Once: a line that was dismissed does not come back until something else fails.
      if (times === 2 && !document.getElementById("offline")) toast("Not updating: the portal " + (status ? "has an error (" + status + ")" : "does not answer") + ". Trying again…", "warning", "offline");
      return;
    }
    toast(status ? "That did not work (" + status + "). Nothing was lost; please try again." : "The portal does not answer. Nothing was lost; please try again.", "error");
  }
  document.addEventListener("htmx:responseError", failed);
  document.addEventListener("htmx:sendError", failed);
  document.addEventListener("htmx:timeout", failed);
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful && !(event.detail.xhr && event.detail.xhr.status === 304)) return;
    const left = new Set($$("[data-live]").map(addressOf));
    if (isLive(event.detail.elt)) failures.delete(addressOf(event.detail.elt));
    [...failures.keys()].forEach((address) => { if (!left.has(address)) failures.delete(address); });
    ["signed-out", ...([...failures.values()].some((times) => times > 1) ? [] : ["offline"])].forEach((id) => { const line = document.getElementById(id); if (line) line.remove(); });
  });

  // --- Forms: input survives an expired session; the first wrong field gets the focus; no double submit ---------------------
  const draftOf = (form) => "draft:" + location.pathname + ":" + (form.id || form.getAttribute("action") || "");
  function values(form) {
    return $$("input, select, textarea", form).filter((e) => e.name && e.name !== "csrfmiddlewaretoken" && !["password", "file", "hidden"].includes(e.type))
      .map((e) => [e.name, ["checkbox", "radio"].includes(e.type) ? e.value + ":" + e.checked : e.value]);
  }
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.matches("form[data-keep]")) sessionStorage.setItem(draftOf(form), JSON.stringify(values(form)));
    if (form.method === "post" && !form.hasAttribute("hx-post") && event.submitter) setTimeout(() => event.submitter.setAttribute("aria-busy", "true"));
    if (form.getAttribute("aria-busy") === "true") event.preventDefault();
    else if (form.method === "post" && form.id !== "post" && !form.hasAttribute("hx-post")) form.setAttribute("aria-busy", "true");
  });
  window.addEventListener("pageshow", () => $$("[aria-busy]").forEach((e) => e.removeAttribute("aria-busy")));
  // Shows how much of a limited text is used; the form enforces the limit.
  function counted(input) {
    const hint = document.getElementById(input.id + "_helptext");
    if (!hint) return;
    const left = hint.querySelector("output") || hint.appendChild(document.createElement("output"));
    const length = [...input.value].length, limit = Number(input.dataset.count);
    left.textContent = length ? " " + length + " of " + limit + "." : "";
    left.classList.toggle("too-much", length > limit);
  }
  document.addEventListener("input", (event) => { if (event.target.dataset.count) counted(event.target); });
  function restore() {
    const keepers = $$("form[data-keep]");
    keepers.forEach((form) => {
      const saved = sessionStorage.getItem(draftOf(form));
      sessionStorage.removeItem(draftOf(form));
      // The answer to a submitted form has its own values; only a fresh form (after signing in again) gets the saved ones.
      if (!saved || document.body.hasAttribute("data-answered")) return;
      const rest = JSON.parse(saved);
      $$("input, select, textarea", form).forEach((e) => {
        const at = rest.findIndex(([name]) => name === e.name);
        if (at < 0 || ["password", "file", "hidden"].includes(e.type)) return;
        const [, value] = rest.splice(at, 1)[0];
        if (["checkbox", "radio"].includes(e.type)) e.checked = value.endsWith(":true"); else e.value = value;
      });
      toast("What you had typed is back; it has not been sent yet.", "info");
    });
    if (!keepers.length && !$("[data-entrance]")) Object.keys(sessionStorage).filter((k) => k.startsWith("draft:")).forEach((k) => sessionStorage.removeItem(k));
  }

  document.addEventListener("DOMContentLoaded", () => {
    showCopyButtons();
    tick();
    inOwnZone();
    restore();
    scrollable();
    $$("[data-count]").forEach(counted);
    const wrong = $(".field-wrong input:not([type=hidden]), .field-wrong select, .field-wrong textarea, [aria-invalid=true]");
    if (wrong) wrong.focus();
  });
})();
