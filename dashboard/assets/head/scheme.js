// Light or dark, before anything is drawn: the reader's choice, else what the system prefers.
(function () {
  "use strict";
  var KEY = "mantine-color-scheme-value"; // where the component library looks for it too
  function stored() {
    try {
      var chosen = window.localStorage.getItem(KEY);
      return chosen === "dark" || chosen === "light" ? chosen : null;
    } catch (refused) {
      return null;
    }
  }
  function preferred() {
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  var root = document.documentElement;
  var shown = stored() || preferred();
  root.setAttribute("data-mantine-color-scheme", shown);

  window.fusionScheme = {
    current: function () {
      return shown;
    },
    choose: function (scheme) {
      shown = scheme;
      root.setAttribute("data-mantine-color-scheme", scheme);
      try {
        window.localStorage.setItem(KEY, scheme);
      } catch (refused) {
        // Without storage the choice holds for this page.
      }
      return scheme;
    },
  };
})();
