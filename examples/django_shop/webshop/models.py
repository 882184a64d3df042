from django.db import models


class Entry(models.Model):
    text = models.TextField()
