// Loads the page. What keeps it from being loaded, such as a worker that ends meanwhile, is said, and it is loaded again once the worker answers.
const WITHIN_MS = 15_000;
const AGAIN_MS = 3_000;
// Without the name and password that the address of a page may have: fetch refuses these.
const PAGE = location.origin + location.pathname;

const late = new Promise((_, reject) => setTimeout(reject, WITHIN_MS, new Error("no answer in time")));

Promise.race([import("./app.js"), late]).catch((error) => {
  const text = document.createElement("p");
  text.className = "empty";
  text.setAttribute("role", "alert");
  text.textContent = `This page is not loaded (${error.message}); it is tried again. The same numbers: mm2py flow list.`;
  document.getElementById("page").replaceChildren(text);
  console.error(error);
  setTimeout(again, AGAIN_MS);
});

const again = () => fetch(PAGE, { cache: "no-store" }).then(() => location.reload(), () => setTimeout(again, AGAIN_MS));
