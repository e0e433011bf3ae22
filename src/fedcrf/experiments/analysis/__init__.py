"""What results show: functions of one tidy table, a row a cell, which `fedcrf.experiments` makes.

`pairs` has means, paired differences and worst cases; `tables`, `figures` and `conditions` write
them; `paper` and `claims` hold them against the paper.
"""
