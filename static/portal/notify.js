// Browser notifications about the user's runs. Idea: one of all open pages polls, the one that holds a lock of the browser. It stores
// there how far it has polled and what it showed last, so nothing is shown twice, and a returning user sees what was missed.
(function () {
  "use strict";
  const address = document.currentScript.dataset.news, EVERY = 20000, SINCE = "portal-news-since", TOLD = "portal-news-told";
  const able = "Notification" in window;

  // --- Profile: ticking the box makes the browser ask for permission --------------------------------------------------------
  function permission() {
    const line = document.querySelector("[data-tell-permission]");
    if (!line) return;
    const said = able ? Notification.permission : "unsupported";
    line.textContent = {
      granted: "While a page of the portal is open in it.",
      default: "While a page of the portal is open in it. Your browser will ask whether the portal may.",
      denied: "This browser shows no notifications of the portal: allow them in its settings for this page. Until then, messages appear in open pages.",
      unsupported: "This browser shows no notifications here (they need https): messages appear in open pages.",
    }[said];
  }
  document.addEventListener("change", (event) => {
    if (able && event.target.checked && event.target.closest('[data-tell="browser"]')) Notification.requestPermission().then(permission);
  });
  permission();
  if (!address) return;

  // --- Polling ---------------------------------------------------------------------------------------------------------------
  function tell(one) {
    if (!able || Notification.permission !== "granted") { window.portalToast(one.title + ". " + one.text, "info", "news-" + one.key.replace(/\W/g, "-")); return; }
    const shown = new Notification(one.title, {body: one.text, tag: one.key});
    shown.onclick = () => { window.focus(); location.assign(one.url); shown.close(); };
  }
  async function ask() {
    const since = localStorage.getItem(SINCE) || "";
    const answer = await fetch(address + "?since=" + encodeURIComponent(since), {headers: {"HX-Request": "true"}, redirect: "error"});
    if (!answer.ok) return answer.status !== 401;
    const said = await answer.json();
    const told = JSON.parse(localStorage.getItem(TOLD) || "[]");
    const fresh = said.news.filter((one) => !told.includes(one.key));
    localStorage.setItem(SINCE, said.now);
    localStorage.setItem(TOLD, JSON.stringify([...told, ...fresh.map((one) => one.key)].slice(-200)));
    fresh.forEach(tell);
    return true;
  }
  async function loop() {
    for (;;) {
      let goOn = true;
      try { goOn = await ask(); } catch (error) { /* The network is away; the next time asks for all of it. */ }
      if (!goOn) return;
      await new Promise((after) => setTimeout(after, EVERY));
    }
  }
  if (navigator.locks) navigator.locks.request("portal-news", loop); else loop();
})();
