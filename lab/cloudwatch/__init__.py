"""CloudWatch and CloudWatch Logs of the lab, over moto: what arrives is counted and acted on.

`series` keeps the metrics, `reading` answers what asks for them, `layer` puts both in moto's place.
"""
