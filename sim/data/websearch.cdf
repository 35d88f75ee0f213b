# Flow sizes of web search: bytes, per cent of flows with at most so many.
# Points of the distribution in "Data Center TCP (DCTCP)", Alizadeh and others, SIGCOMM 2010.
0 0
10000 15
20000 20
30000 30
50000 40
80000 53
200000 60
1000000 70
2000000 80
5000000 90
10000000 97
30000000 100
