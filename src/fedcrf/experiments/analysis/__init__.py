"""What results show: functions of one tidy table, a row a cell, made by `fedcrf.experiments`."""
