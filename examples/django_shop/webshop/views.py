import json

from django.http import Http404, HttpRequest, HttpResponse

from keyrun import UnknownRun
from webshop.orders import checkout, runtime


def submit(request: HttpRequest) -> HttpResponse:
    order = json.loads(request.body)
    runtime().submit(checkout, order, key=order["customer"], run_id=order["id"])
    return HttpResponse(status=202)


def paid(request: HttpRequest, order_id: str) -> HttpResponse:
    try:
        # A webhook may call this more than once.
        runtime().signal(order_id, "paid", signal_id="paid")
    except UnknownRun as error:
        raise Http404 from error
    return HttpResponse(status=202)


def result(request: HttpRequest, order_id: str) -> HttpResponse:
    try:
        # Wait until the order has shipped.
        return HttpResponse(runtime().run(order_id).result(timeout=30))
    except UnknownRun as error:
        raise Http404 from error
