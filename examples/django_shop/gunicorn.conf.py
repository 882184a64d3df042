workers = 1  # one process owns the store
threads = 8


def post_worker_init(worker):
    from webshop.orders import runtime

    runtime()  # unfinished orders resume now, and not at the first request
