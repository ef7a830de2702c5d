"""Views: parse, authorise, call one service or query, render. One module a noun of the navigation."""
