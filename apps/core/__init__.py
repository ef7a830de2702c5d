"""What every room may use: ids, errors, paging, live notices and the contracts that cross a process."""
