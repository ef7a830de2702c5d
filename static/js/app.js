// Starts what the page has use for. The server's page works without any of it.

import { startAsking } from "./asking.js";
import { startCharts } from "./charts.js";
import { startColumns } from "./columns.js";
import {
  startConfirm,
  startCopy,
  startFilters,
  startMenus,
  startPlaces,
  startRefusals,
  startScrollers,
  startTabs,
} from "./controls.js";
import { startDrafts } from "./drafts.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startMarks } from "./marks.js";
import { startPool } from "./pool.js";
import { startPresses } from "./presses.js";
import { startThemes } from "./theme.js";
import { startTimes } from "./times.js";
import { startToasts } from "./toast.js";
import { startWaits } from "./waits.js";

document.documentElement.classList.add("js");

startThemes();
startAsking();
startMenus();
startTabs(document);
startCopy();
startConfirm();
startRefusals();
startFilters();
startScrollers();
startPlaces();
startToasts();
startTimes();
startKeys();
startPresses();
startWaits();
startPool();
startColumns();
startMarks();
startDrafts();
startCharts();
startLive(document.body.dataset);
