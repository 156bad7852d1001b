// What the list of kernels shows → the address bar. The server has written filters and order as an address holds them.
(function () {
  "use strict";
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.kernels = {
    address: function (shown) {
      if (shown && /\/kernels$/.test(window.location.pathname)) {
        var url = new URL(window.location.href);
        ["filter", "sort", "group"].forEach(function (name) {
          if (shown[name]) {
            url.searchParams.set(name, shown[name]);
          } else {
            url.searchParams.delete(name);
          }
        });
        window.history.replaceState(window.history.state, "", url);
      }
      return window.dash_clientside.no_update;
    },
  };
})();
