// The datastore form: results of a test or errors appear at their fields, and all input stays, keys included.
(function () {
  "use strict";
  const form = document.getElementById("datastore-form");
  if (!form) return;

  function clear() {
    form.querySelectorAll(".errorlist").forEach((list) => list.remove());
    form.querySelectorAll(".field-wrong").forEach((field) => field.classList.remove("field-wrong"));
    form.querySelectorAll("[aria-invalid]").forEach((input) => input.removeAttribute("aria-invalid"));
  }

  form.addEventListener("form:wrong", (event) => {
    clear();
    Object.entries(event.detail.fields).forEach(([name, sentence]) => {
      const input = form.elements[name];
      const list = document.createElement("ul"), item = document.createElement("li");
      list.className = "errorlist";
      list.id = input.id + "_error";
      item.textContent = sentence;
      list.append(item);
      input.setAttribute("aria-invalid", "true");
      input.closest(".field").classList.add("field-wrong");
      input.closest(".field").append(list);
    });
    const first = form.querySelector("[aria-invalid]");
    if (first) first.focus();
  });
  form.addEventListener("input", () => { document.getElementById("outcome").replaceChildren(); });
})();
