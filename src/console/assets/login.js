// The part behind # survives the redirects of the login only if the form carries it.
const form = document.getElementById("login");
if (location.hash) form.action += location.hash;
