// The two runs that are compared: swapped, and in the address bar.
(function () {
  "use strict";
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.compare = {
    swap: function (clicks, before, after) {
      var none = window.dash_clientside.no_update;
      return clicks ? [after, before] : [none, none];
    },
    address: function (before, after) {
      if (window.location.pathname === "/compare") {
        var url = new URL(window.location.href);
        [["a", before], ["b", after]].forEach(function (each) {
          if (each[1]) {
            url.searchParams.set(each[0], each[1]);
          } else {
            url.searchParams.delete(each[0]);
          }
        });
        window.history.replaceState(window.history.state, "", url);
      }
      return window.dash_clientside.no_update;
    },
  };
})();
