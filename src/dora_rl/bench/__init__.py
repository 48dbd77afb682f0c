"""Every benchmark and every study; nothing of the product imports this package.

control_speed  the control plane under a simulated fleet of thousands (`dora bench control`)
engine         tokens a second of the native engine, and what its features cost (`dora bench engine`)
train          whole train steps, beside transformers (`dora bench train`)
delta_figures  versions as deltas against full weights (`dora bench weights`)
gap            log-probabilities of engine and trainer for the same tokens (`dora bench gap`)
models         tiny random models of each type, through trainer and engine (`dora bench models`)
schedules      live runs of one recipe under every schedule, and predictions (`dora bench schedules`)
peer           the same training by TRL and by us (`dora bench peer`)
studies        questions that take several simulated runs (`dora simulate study`)
"""
