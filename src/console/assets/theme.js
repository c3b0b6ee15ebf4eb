// Ahead of the style sheet, so that the page is never painted in the other theme.
{
  let theme = null;
  try { theme = localStorage.getItem("login-console-theme"); } catch { /* storage is switched off */ }
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
}
