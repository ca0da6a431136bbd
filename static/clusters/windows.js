// Shows only the choices whose words contain what is typed in the field beside them.
"use strict";
document.querySelectorAll("input[data-finds]").forEach((field) => {
  const choices = [...document.getElementById(field.dataset.finds).children];
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    choices.forEach((choice) => { choice.hidden = !choice.textContent.toLowerCase().includes(wanted); });
  });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
});
